"""Holes in sentences where a template stood, per 1,000 prose paragraphs of CLOZELINE_DATA's dumps.

Marks stand around each template before the markup is stripped. Where both are left with nothing in
between, inside a sentence, there is a hole: that is measured in the same way for any version.
"""

import bz2
import lzma
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from clozeline.pipeline.sources.mediawiki.dump import TruncatedDump, read_pages
from clozeline.pipeline.sources.mediawiki.markup import over_budget
from tests.benchmarks.measuring import DATA
from tests.support.small_sources import strip_markup

DUMPS = {
    "English": "enwiki-slice-pages-articles.xml.bz2",
    "Latgalian": "smallwiki-latest-pages-articles.xml.bz2",
    "Greek": "elwiki-truncated-100k.xml.xz",
    "Bulgarian": "bgwiki-latest-pages-articles-shortened.xml.bz2",
}
BEGIN, END = "\ue000", "\ue001"
BRACES = re.compile(r"\{\{|\}\}|<!--.*?-->|<ref\b[^>]*/>|<ref\b.*?</ref>", re.DOTALL)
HOLE = re.compile(rf"(?<=[^\s.!?:] ){BEGIN}\s*{END}(?=[,.;)]|\s*\w)")
MIN_WORDS = 10  #: of a paragraph of prose, which ends with a mark


def main() -> None:
    if not DATA:
        print("CLOZELINE_DATA is not set: there is no dump to read")
    else:
        for language, name in DUMPS.items():
            holes, prose = count_holes(Path(DATA, "dumps", name))
            print(f"{language:10} {holes:6,} holes in {prose:7,} paragraphs of prose", end="")
            print(f"{1000 * holes / max(prose, 1):8.1f} per 1,000")


def count_holes(path: Path) -> tuple[int, int]:
    holes = prose = 0
    for markup in articles(path):
        for line in strip_markup(with_marks(markup)).split("\n"):
            plain = line.replace(BEGIN, "").replace(END, "").rstrip()
            if len(plain.split()) >= MIN_WORDS and plain.endswith((".", "!", "?", '"', ")")):
                prose += 1
                holes += len(HOLE.findall(line))
    return holes, prose


def articles(path: Path) -> Iterator[str]:
    opener = bz2.open if path.suffix == ".bz2" else lzma.open
    with opener(path) as stream, suppress(TruncatedDump):
        for page in read_pages(stream):
            is_article = not page.redirect and not page.namespace and page.model == "wikitext"
            if is_article and over_budget(page.text) is None:
                yield page.text


def with_marks(markup: str) -> str:
    """The page with marks around its templates, but for those inside of others."""
    parts, depth, position = [], 0, 0
    for token in BRACES.finditer(markup):
        if token[0] not in ("{{", "}}"):
            continue
        opens = token[0] == "{{"
        if opens and not depth:
            parts += markup[position : token.start()], BEGIN
            position = token.start()
        depth = max(depth + (1 if opens else -1), 0)
        if not opens and not depth:
            parts += markup[position : token.end()], END
            position = token.end()
    return "".join([*parts, markup[position:]])


if __name__ == "__main__":
    main()
