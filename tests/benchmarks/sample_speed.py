"""CPU speed of the built-in sample compared with plain `random.choice`, one word at a time.

    python tests/benchmarks/sample_speed.py [MEGABYTES]

Best of three, in CPU seconds of one process; only the ratio carries over to other machines.
"""

import random
import sys
from collections.abc import Callable

from clozeline.pipeline.sources.sample.articles import count_articles, make_articles
from clozeline.pipeline.sources.sample.reviews import make_reviews
from tests.support.measuring import timed

RUNS = 3


def megabytes_per_second(make: Callable[[], list[str]]) -> float:
    """The best of several repetitions, in MB of UTF-8 per CPU second."""
    runs = (timed(make) for _ in range(RUNS))
    return max(sum(len(text.encode()) for text in texts) / 1e6 / s for texts, s in runs)


def random_words_texts(vocabulary: list[str], size_bytes: int) -> list[str]:
    """The baseline: words drawn one by one, 250 per text."""
    choice = random.Random(0).choice
    texts, size = [], 0
    while size < size_bytes:
        texts.append(" ".join(choice(vocabulary) for _ in range(250)))
        size += len(texts[-1])
    return texts


def main() -> None:
    size_bytes = int(float(sys.argv[1] if len(sys.argv) > 1 else 50) * 1e6)
    vocabulary = " ".join(make_articles(1, 0, 500)).split()
    baseline = megabytes_per_second(lambda: random_words_texts(vocabulary, size_bytes // 10))
    articles = megabytes_per_second(lambda: make_articles(0, 0, count_articles(size_bytes)))
    reviews = megabytes_per_second(lambda: make_reviews(0, 0, 20_000).contents)
    print(f"random.choice  {baseline:6.1f} MB/s of CPU  1.0x")
    print(f"articles       {articles:6.1f} MB/s of CPU  {articles / baseline:.1f}x")
    print(f"reviews        {reviews:6.1f} MB/s of CPU  {reviews / baseline:.1f}x")


if __name__ == "__main__":
    main()
