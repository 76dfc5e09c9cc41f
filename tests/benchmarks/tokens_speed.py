"""CPU speed of `ColumnTokenizer` compared with `encode_batch`, one thread, same text.

    python tests/benchmarks/tokens_speed.py [MEGABYTES]

Wikipedia, and BERT's WordPiece besides, where CLOZELINE_DATA is set, else generated articles.

Cold: the first call, with an empty memo; cold on: as much as half of the text. Warm: the other
half, new text. All: these three. Again: the second half once more, all of it in the memo.
`encode_batch` is as fast on any text; it is timed on the first call.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}

import numpy as np

from clozeline.pipeline.sources.sample.articles import make_articles
from clozeline.pipeline.tokenization.column_tokenizer import ColumnTokenizer
from clozeline.pipeline.tokenization.learn import learn_vocabulary
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, adopt_vocabulary
from tests.benchmarks.measuring import BERT_VOCABULARY, DATA, wikipedia

CALL_BYTES = 8_000_000
Result = TypeVar("Result")


def paragraphs(texts: Iterable[str], wanted_bytes: int) -> list[list[str]]:
    """Lines of the articles, about CALL_BYTES per call, in at least four calls."""
    calls, lines, size, total = [], [], 0, 0
    for text in texts:
        lines += text.split("\n")
        size += len(text.encode())
        if size >= min(CALL_BYTES, wanted_bytes // 4):
            calls.append(lines)
            lines, size, total = [], 0, total + size
        if total >= wanted_bytes:
            break
    return calls


def timed(name: str, calls: list[list[str]], encode: Callable[[list[str]], Result]) -> Result:
    megabytes = sum(len(line.encode()) for lines in calls for line in lines) / 1e6
    start = time.process_time()
    for lines in calls:
        result = encode(lines)
    report(name, megabytes, time.process_time() - start)
    return result


def report(name: str, megabytes: float, seconds: float) -> None:
    measured[name] = megabytes, seconds
    speed, (size, time_of_library) = megabytes / seconds, measured["encode_batch"]
    ratio = speed * time_of_library / size
    print(f"{name:<14}{megabytes:8.1f} MB {seconds:8.2f} s {speed:8.1f} MB/s {ratio:6.1f} x")


def library_ids(tokenizer: Tokenizer, lines: list[str]) -> list[list[int]]:
    found = tokenizer.library.encode_batch(lines, add_special_tokens=False)
    return [encoding.ids for encoding in found]


#: Megabytes and CPU seconds of each line.
measured: dict[str, tuple[float, float]] = {}


def compare(name: str, tokenizer: Tokenizer, calls: list[list[str]]) -> None:
    print(name)
    half = len(calls) // 2
    columns = ColumnTokenizer(tokenizer)
    reference = timed("encode_batch", calls[:1], partial(library_ids, tokenizer))
    ids, lengths = timed("cold", calls[:1], columns.encode)
    timed("cold on", calls[1:half], columns.encode)
    timed("warm", calls[half:], columns.encode)
    parts = [measured[name] for name in ("cold", "cold on", "warm")]
    report("all", sum(size for size, _ in parts), sum(seconds for _, seconds in parts))
    timed("again", calls[half:], columns.encode)
    assert lengths.tolist() == list(map(len, reference))
    assert np.array_equal(ids, np.concatenate([np.array(x, np.uint32) for x in reference]))


if __name__ == "__main__":
    texts = wikipedia() if DATA else make_articles(0, 0, 20_000)
    calls = paragraphs(texts, int(float(sys.argv[1] if len(sys.argv) > 1 else 48) * 1e6))
    if DATA:
        compare("WordPiece", adopt_vocabulary(BERT_VOCABULARY, cased=False, punkt=None), calls)
    for model in ("bpe", "unigram"):
        text = iter("\n".join(calls[0]).split("\n\n"))
        learned = learn_vocabulary(text, model=model, vocab_size=16_384)
        compare(f"{model}, 16,384 tokens", learned, calls)
