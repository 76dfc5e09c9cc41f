"""Public tokenizers and ours on the same text: MB per CPU second, and whether the ids are equal.

    pip install tokie==0.1.4 gigatoken==0.10.0      (optional: those that are missing are left out)
    python tests/benchmarks/tokens_speed.py [MEGABYTES]

Wikipedia, and BERT's WordPiece besides, where CLOZELINE_DATA is set, else generated articles. One
thread; a call has about 8 MB of paragraphs, as lists of strings. First: all of the text, by a
tokenizer that has seen none. Again: the same text. Differ: paragraphs whose ids are not those of
`tokenizers`, by which the ratio is.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}

import numpy as np

from clozeline.pipeline.sources.sample.articles import make_articles
from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from clozeline.pipeline.tokenization.learn import learn_vocabulary
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.train_tokenizer import adopt_vocabulary
from tests.benchmarks.measuring import BERT_VOCABULARY, DATA, wikipedia

CALL_BYTES = 8_000_000
Encode = Callable[[list[str]], list[list[int]]]


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


def encoders(tokenizer: Tokenizer) -> dict[str, Callable[[], Encode]]:
    """What makes each encoder, by name: the library first, then ours, then the public ones."""
    values = json.loads(tokenizer.library.to_str())
    values |= {"added_tokens": [], "post_processor": None}  # text never becomes a special token
    text = json.dumps(values)
    made = {"tokenizers": lambda: tokenizer.encode_batch, "ours": lambda: _ours(tokenizer)}
    others = {"nanotoken": _nanotoken, "tokie": _tokie, "gigatoken": _gigatoken}
    return made | {
        name: (lambda make=make: make(text)) for name, make in others.items() if find_spec(name)
    }


def _ours(tokenizer: Tokenizer) -> Encode:
    return SentenceEncoder(tokenizer).encode


def _nanotoken(text: str) -> Encode:
    import nanotoken

    made = nanotoken.Tokenizer.from_json(text)
    return lambda lines: made.encode_batch(lines, add_special_tokens=False, parallel=False)


def _tokie(text: str) -> Encode:
    import tokie

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        path.write_text(text)
        made = tokie.Tokenizer.from_json(str(path))
    return lambda lines: [e.ids for e in made.encode_batch(lines, add_special_tokens=False)]


def _gigatoken(text: str) -> Encode:
    import gigatoken

    made = gigatoken.Tokenizer.from_json(text)
    return lambda lines: made.encode_batch_list(lines, parallel=False)


def rows_of(found) -> list[list[int]]:
    """The ids of each paragraph, of whatever an encoder returns."""
    if isinstance(found, tuple):
        ids, lengths = found
        return [part.tolist() for part in np.split(ids, np.cumsum(lengths))[:-1]]
    return found if isinstance(found, list) else found.to_list()


def seconds_of(encode: Encode, calls: list[list[str]]) -> tuple[float, list]:
    """CPU seconds for all calls, and what the first one found."""
    start = time.process_time()
    found = [encode(lines) for lines in calls]
    return time.process_time() - start, found[0]


def compare(name: str, tokenizer: Tokenizer, calls: list[list[str]]) -> None:
    """A line for each encoder."""
    megabytes = sum(len(line.encode()) for lines in calls for line in lines) / 1e6
    print(f"\n{f'{name}, {megabytes:.1f} MB':30}{'first':>8}{'again':>8}{'differ':>8}")
    reference, speed = [], 0.0
    for label, make in encoders(tokenizer).items():
        try:
            encode = make()
        except Exception as error:
            print(f"{label:30}{str(error).splitlines()[0][:60]:>24}")
            continue
        first, found = seconds_of(encode, calls)
        again, _ = seconds_of(encode, calls)
        rows = rows_of(found)
        reference, speed = reference or rows, speed or megabytes / first
        differ = sum(a != b for a, b in zip(rows, reference, strict=True))
        speeds = f"{megabytes / first:8.1f}{megabytes / again:8.1f}"
        print(f"{label:30}{speeds}{differ:8}{megabytes / first / speed:8.1f} x")
        assert label != "ours" or not differ


if __name__ == "__main__":
    texts = wikipedia() if DATA else make_articles(0, 0, 20_000)
    calls = paragraphs(texts, int(float(sys.argv[1] if len(sys.argv) > 1 else 16) * 1e6))
    if DATA:
        compare("WordPiece", adopt_vocabulary(BERT_VOCABULARY, cased=False), calls)
    for model in ("wordpiece", "bpe"):
        text = iter("\n".join(calls[0]).split("\n\n"))
        learned = learn_vocabulary(text, model=model, vocab_size=16_384)
        compare(f"{model}, 16,384 tokens", learned, calls)
