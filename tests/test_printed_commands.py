"""The commands of the README and of the tutorial, run one after the other as a new user would.

Only sizes are smaller here: less text, a smaller vocabulary, fewer rows and steps.
"""

import csv
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.sources.sample.reviews import make_reviews
from tests.support.small_jobs import articles, write_parquet

ROOT = Path(__file__).parent.parent
SMALLER = (
    (r"size=\d+MB", "size=300KB"),
    (r"rows=\d+", "rows=60"),
    (r"--vocab-size \d+", "--vocab-size 600"),
    (r"--max-steps \d+", "--max-steps 3"),
    (r"--preset \S+", "--preset bert-tiny"),
)


def commands(page: str, *, heading: str) -> list[list[str]]:
    """The words after `clozeline` of each line of a page's code blocks, from a heading on."""
    text = (ROOT / page).read_text()
    blocks = re.findall(r"^```\n(.*?)^```", text[text.index(heading) :], re.S | re.M)
    lines = [line for block in blocks for line in block.splitlines()]
    found = [re.fullmatch(r"(?:\$ |\.venv/bin/)clozeline (.*)", line) for line in lines]
    return [shlex.split(smaller(line[1])) for line in found if line]


def smaller(line: str) -> str:
    for pattern, size in SMALLER:
        line = re.sub(pattern, size, line)
    return line


def write_reviews(path: Path, start: int) -> None:
    """A table of labelled reviews, as of one's own."""
    reviews = make_reviews(0, start, start + 60)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["review", "stars"])
        table.writerows(zip(reviews.contents, reviews.labels.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "heading", "number"),
    [("README.md", "## Your own text", 7), ("docs/manual/tutorial.md", "# Tutorial", 9)],
)
def test_every_printed_command_ends_well(page, heading, number, tmp_path):
    (tmp_path / "articles").mkdir()
    write_parquet(tmp_path / "articles" / "a.parquet", articles(200))
    write_reviews(tmp_path / "train.csv", 0)
    write_reviews(tmp_path / "test.csv", 1000)
    found = commands(page, heading=heading)
    assert len(found) >= number
    for words in found:
        done = subprocess.run(
            [sys.executable, "-m", "clozeline", *words],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (words, done.stderr)
        assert done.stdout.strip(), words
