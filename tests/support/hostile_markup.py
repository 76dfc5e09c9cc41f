"""Pages that are slow on purpose: repeated fragments, and lines that mislead a parser."""

from collections.abc import Iterator

from clozeline.pipeline.sources.mediawiki.markup import MAX_BYTES, MAX_OPEN, MAX_PARSED

UNITS = [
    *("{{", "}}", "[[", "]]", "{|", "\n{|", "\n|}", "<ref>", "<ref", "</ref>", "<!--", "<nowiki>"),
    *("<math>", "<table>", "'''''", "''a ", "[http://", "[http://a ", "[[a|", "[[File:x|", "<x a="),
    *("[[a:b.jpg|", "&", "&#", "( ;", "=", "__A", "*#:;", "{{a|[[", "{{<ref>", "\n[[en:a"),
    *("[[a|''", "''[[", "[[a:", " (", " ", "\xa0", "(", "''\0", "\n}}", "\n}}}", "[//b\n"),
    *("\n[http://a ", "|"),
    *("[[mailto:c ", "[[a\n|", " ''", "''''", "'''a ", "</ref ", "<source inline>", "{{{", "&amp;"),
]
#: A quadratic step on any of these takes minutes, the cubic ones years.
LONG = [
    "(x" + " " * 1_000_000 + "y)",
    "(x" + "\xa0" * 500_000 + "y)",
    "(" + " ;" * 500_000 + "x",
    "[http://" + "a" * 1_000_000,
    "[http://a" + " " * 1_000_000,
    "[[" + "a" * 1_000_000,
    "#a" + " " * 1_000_000 + "x",
]
#: Lines that take a backtracking parser long: two seconds for the first. What that leaves open is
#: closed in the next line, so that a page of it is within the budget.
STUBBORN = [
    "[mailto:c "
    + "[[mailto:c " * 20
    + "['----<span class=] [[mailto:c a[aaaaa&#38;}}}\n"
    + "]]" * 21,
    *("[http://a " * 45, "<x a=" * 45, "[mailto:a b" * 40, "<x>''<y>'''" * 11, "[[x|'''y]]" * 16),
    "[//a <b <div </i><div <div </i><div " + ": " * (MAX_PARSED // 2 - 50),
    "[//a ]]}}<div <div &x;]]}}}}<div <div <div <div " + "] " * (MAX_PARSED // 2 - 50),
]


def worst_pages() -> Iterator[tuple[str, str]]:
    """(fragment, page): a page of the repeated fragment, as large as the budget allows."""
    for unit in [*UNITS, *STUBBORN]:
        for padded in (unit, unit + "\n", unit.ljust(21, "a")):
            opened = sum(map(padded.count, "[{<"))
            times = MAX_BYTES // len(padded.encode())
            yield padded, padded * (min(times, MAX_OPEN // opened) if opened else times)
    yield from ((page[:20] + "...", page) for page in LONG)
