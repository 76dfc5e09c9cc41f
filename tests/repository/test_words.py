"""Plain words: comments, docstrings, messages and the manual use the field's terms."""

import functools
import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: What not to write: what to write instead.
PLAIN = {
    r"(?:#: |^\"+)(?:Of|Instead of|How often|So many) ": "a phrase that stands alone",
    r"\bnot given:": "Default: ...",
    r"(?<!here )\bis no (?!longer|more|less)[a-z]+": "is not a ...",
    r"(?<!here )\bare no (?!longer|more|less|stale)[a-z]+": "are not ...",
    r"\bnobody\b": "cannot connect to; unknown",
    r"\bmend(?:s|ed|able|ing)?\b": "fix",
    r"\b(?:lives|life)\b": "process, restart; is in",
    r"\bthe clock\b": "elapsed time",
    r"(?<!page )(?<!page then )(?<!tests\.)\bfaults\b(?! again|/)": "findings",
    r"\bstretch(?:es)?\b": "span",
    r"\brivals?\b": "compared models",
    r"\bfacts\b": "summary, metadata",
    r"\b(?:tell|tells|told)\b": "print, report, return",
    r"\bmade of\b": "built from",
    r"\bsaid so\b|\bis said\b": "is reported",
    r"\bgo(?:es)? on\b|\bwent on\b": "continue, resume",
    # "Look at the pairs." is plain advice: lower case only.
    r"(?:\blook(?:s|ed|ing)?\b)(?! at the pairs| ?-?(?:up|ahead|behind)| (?:it|them) up| like)":
        "poll, check",
}  # fmt: skip
#: Generated text, not ours to keep plain.
PROSE = ("pipeline/sources/sample/",)


@functools.cache
def words_of(path):
    """Line number and text of every comment and string of a module, or of every line of a text."""
    text = path.read_text()
    if path.suffix != ".py":
        return list(enumerate(text.splitlines(), start=1))
    f_string = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)  # from Python 3.12
    kinds = (tokenize.COMMENT, tokenize.STRING, f_string)
    return [
        (token.start[0] + offset, line)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in kinds
        for offset, line in enumerate(token.string.splitlines())
    ]


def findings(path, pattern):
    """ "train/cli.py:24: Mend that" """
    name = path.relative_to(ROOT).as_posix()
    return [
        f"{name}:{number}: {line.strip()}"
        for number, line in words_of(path)
        if re.search(pattern, line, re.IGNORECASE if pattern[0] == "\\" else 0)
    ]


FILES = [
    path
    for pattern in ("pipeline/**/*.py", "model/**/*.py", "train/**/*.py", "**/*.jinja")
    for path in sorted(ROOT.glob(pattern))
    if not path.relative_to(ROOT).as_posix().startswith(PROSE)
] + [ROOT / name for name in ("README.md", "Makefile", "pyproject.toml")]
FILES += sorted(ROOT.glob("docs/manual/*.md")) + sorted(ROOT.glob("deploy/*"))


@pytest.mark.parametrize("pattern", PLAIN)
def test_plain_words(pattern):
    found = [finding for path in FILES for finding in findings(path, pattern)]
    assert not found, f"{len(found)} lines; say it as: {PLAIN[pattern]}"


def test_nothing_is_left_of_a_merge():
    files = [*FILES, *ROOT.glob("*.md"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("examples/**/*.*")]
    marker = re.compile(r"^(?:<{7}|={7}|>{7})(?: |$)", re.M)
    assert not [str(path) for path in files if marker.search(path.read_text(errors="replace"))]


def test_private_english_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / "module.py"
    lines = ['"""A look at', 'what was told."""', "#: Of every choice.", '"a.json is no run"']
    path.write_text("\n".join(lines))
    found = {finding for pattern in PLAIN for finding in findings(path, pattern)}
    assert found == {f"module.py:{number}: {line}" for number, line in enumerate(lines, start=1)}
