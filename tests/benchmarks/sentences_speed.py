"""CPU speed of sentence splitting, compared with NLTK's Punkt.

    python tests/benchmarks/sentences_speed.py [MEGABYTES]

Real paragraphs where CLOZELINE_DATA is set (Wikipedia, NLTK's English parameters), else articles
of `clozeline.pipeline.sources.sample.articles` and parameters learned from them.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from clozeline.pipeline.sentences.punkt import PunktData, find_punkt, train_punkt
from clozeline.pipeline.sentences.splitter import SentenceSplitter
from tests.benchmarks.measuring import DATA, timed
from tests.support.nltk_sentences import nltk_splitter, spans_of

NLTK_BYTES = 4_000_000  # NLTK is slow: it gets only the start of the text


def main() -> None:
    paragraphs, parameters = real_text(Path(DATA)) if DATA else sample_text()
    if sys.argv[1:]:
        paragraphs = beginning(paragraphs, int(float(sys.argv[1]) * 1e6))
    theirs, ours = nltk_splitter(parameters), SentenceSplitter(parameters)
    some = beginning(paragraphs, NLTK_BYTES)
    nltk_speed = speed(lambda: [list(theirs.span_tokenize(text)) for text in some], some)
    cold = speed(lambda: ours.split("\n".join(paragraphs).encode(), cut=False), paragraphs)
    warm = speed(lambda: ours.split("\n".join(paragraphs).encode(), cut=False), paragraphs)
    wrong = sum(
        spans_of(ours, text, cut=False) != list(theirs.span_tokenize(text)) for text in some
    )
    print(f"text   {megabytes(paragraphs):.1f} MB, {len(paragraphs):,} paragraphs, one process")
    print(f"nltk   {nltk_speed:6.1f} MB/s CPU")
    print(f"ours   {cold:6.1f} MB/s CPU, {cold / nltk_speed:.1f} times; again {warm:.1f} MB/s")
    print(f"differ {wrong} of {len(some):,} paragraphs")
    sys.exit(wrong > 0)


def real_text(data: Path) -> tuple[list[str], PunktData]:
    import pyarrow.parquet as pq

    parameters = find_punkt("english")
    assert parameters is not None, f"no punkt_tab in {data}"
    file = data / "wikipedia" / "train-00000-of-00006.parquet"
    return lines_of(pq.read_table(file, columns=["text"])["text"].to_pylist()), parameters


def sample_text() -> tuple[list[str], PunktData]:
    from clozeline.pipeline.sources.sample.articles import make_articles

    texts = make_articles(0, 0, 5_000)
    return lines_of(texts), train_punkt(texts[:200], "english")


def lines_of(texts: list[str]) -> list[str]:
    return [line for text in texts for line in map(str.strip, text.split("\n")) if line]


def beginning(paragraphs: list[str], size: int) -> list[str]:
    total = 0
    for count, text in enumerate(paragraphs):
        total += len(text)
        if total > size:
            return paragraphs[:count]
    return paragraphs


def megabytes(paragraphs: list[str]) -> float:
    return sum(len(text.encode()) for text in paragraphs) / 1e6


def speed(work: Callable[[], object], paragraphs: list[str]) -> float:
    return megabytes(paragraphs) / timed(work)[1]


if __name__ == "__main__":
    main()
