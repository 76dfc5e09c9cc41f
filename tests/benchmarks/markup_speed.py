"""CPU speed of markup stripping, compared with mwparserfromhell's `strip_code`.

    markup_speed.py             speed
    markup_speed.py --worst     seconds of the worst pages within the budget

The pages are the articles of the English slice in CLOZELINE_DATA; `--worst` needs no data.
"""

import argparse
import bz2
import io
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import mwparserfromhell

from clozeline.pipeline.sources.mediawiki.dump import read_pages
from clozeline.pipeline.sources.mediawiki.markup import MAX_BYTES, over_budget
from tests.benchmarks.measuring import DATA, timed
from tests.support.hostile_markup import worst_pages
from tests.support.small_sources import strip_markup

DUMP = "dumps/enwiki-slice-pages-articles.xml.bz2"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worst", action="store_true", help="only the worst pages")
    options = parser.parse_args()
    if options.worst:
        print_worst()
    elif not DATA:
        print("CLOZELINE_DATA is not set: there is no dump to read")
    else:
        print_speed(Path(DATA, DUMP))


def print_speed(path: Path) -> None:
    """A line for each step from page to text."""
    with bz2.open(path) as stream:
        pages, reading = timed(lambda: list(read_pages(stream)))
    markup = [page.text for page in pages if not page.redirect and page.namespace == 0]
    megabytes = sum(len(text.encode()) for text in markup) / 1e6
    _, budget = timed(lambda: list(map(over_budget, markup)))
    _, stripping = timed(lambda: list(map(strip_markup, markup)))
    _, theirs = timed(lambda: [mwparserfromhell.parse(text).strip_code() for text in markup])
    print(f"{len(pages)} pages, {len(markup)} articles, {megabytes:.2f} MB of markup, one process")
    print(f"{'':28}{'CPU s':>8}{'MB/s':>8}")
    for what, seconds in (
        ("read the dump (bz2, pages)", reading),
        ("check the page budget", budget),
        ("strip the markup", stripping),
        ("dump to text, all of these", reading + budget + stripping),
        ("mwparserfromhell strip_code", theirs),
    ):
        print(f"{what:28}{seconds:8.2f}{megabytes / seconds:8.1f}")
    ratio = theirs / (budget + stripping)
    print(f"budget and stripping are {ratio:.1f} times as fast as strip_code")


def print_worst() -> None:
    """The slowest of the hostile pages, each as large as the budget allows."""
    found = sorted(worst_seconds(), reverse=True)
    print(f"{len(found)} hostile pages within the budget, of at most {MAX_BYTES:,} bytes; CPU s:")
    for seconds, size, unit in found[:10]:
        print(f"{seconds:6.2f} {size:10,} bytes of {unit[:60]!r}")


def worst_seconds() -> Iterator[tuple[float, int, str]]:
    for unit, markup in worst_pages():
        if over_budget(markup) is None:
            _, seconds = timed(partial(read_and_strip, markup))
            yield seconds, len(markup.encode()), unit


def read_and_strip(markup: str) -> str:
    """A page through all steps, starting from the dump's XML."""
    escaped = markup.replace("&", "&amp;").replace("<", "&lt;")
    xml = f"<page><title>A</title><revision><text>{escaped}</text></revision></page>"
    (page,) = read_pages(io.BytesIO(xml.encode()))
    over_budget(page.text)
    return strip_markup(page.text)


if __name__ == "__main__":
    main()
