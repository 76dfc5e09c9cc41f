"""Pages that are slow on purpose: repeated fragments, and long runs."""

from collections.abc import Iterator

from clozeline.pipeline.sources.mediawiki.markup import MAX_BYTES, MAX_OPEN

UNITS = [
    *("{{", "}}", "[[", "]]", "{|", "\n{|", "\n|}", "<ref>", "<ref", "</ref>", "<!--", "<nowiki>"),
    *("<math>", "<table>", "'''''", "''a ", "[http://", "[http://a ", "[[a|", "[[File:x|", "<x a="),
    *("[[a:b.jpg|", "&", "&#", "( ;", "=", "__A", "*#:;", "{{a|[[", "{{<ref>", "\n[[en:a"),
    *("[[a|''", "''[[", "[[a:", " (", " ", "\xa0", "(", "''\0", "\n}}", "\n}}}", "[//b\n"),
    *("\n[http://a ", "|"),
    *("[[a|[b]", "[[a|[", "[[|", "[[[b]|"),
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


def worst_pages() -> Iterator[tuple[str, str]]:
    """(fragment, page): a page of the repeated fragment, as large as the budget allows."""
    for unit in UNITS:
        for padded in (unit, unit + "\n", unit.ljust(21, "a")):
            opened = sum(map(padded.count, "[{<"))
            times = MAX_BYTES // len(padded.encode())
            yield padded, padded * (min(times, MAX_OPEN // opened) if opened else times)
    yield from ((page[:20] + "...", page) for page in LONG)
