"""Near-duplicates in real text with planted copies: found, missed, and at what cost.

    CLOZELINE_DATA=... python tests/benchmarks/near_duplicates_speed.py --megabytes 250
    ... --datatrove ENV/bin/python    # of an environment with `pip install "datatrove[processing]"`

A tenth of the articles is planted a second time: as it is, with 1, 2, 5 or 10 % of its words
replaced, cut, or between boilerplate. Prints the CPU seconds of each step beside tokenizing, recall
over the exact similarity of the planted pairs, and with --datatrove the same for its MinHash
pipeline: four stages, local executor, the same shingles and bands.
"""

import argparse
import json
import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from clozeline.pipeline.common.counter_rng import random_bits, stream_key
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.curation.near.search import (
    Bands,
    components,
    document_ids,
    jaccard,
    shingle_sets,
)
from clozeline.pipeline.curation.near.steps import (
    PAIR,
    compare_documents,
    connect_documents,
    pair_documents,
    read_rows,
)
from clozeline.pipeline.curation.words import hash_ngrams, hash_words
from clozeline.pipeline.dataset.buckets import Buckets, hash_documents
from clozeline.pipeline.dataset.cache_file import read_counts
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.steps.context import scratch_context
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import Normalization
from tests.benchmarks.measuring import BERT_VOCABULARY, cpu_of_children, wikipedia
from tests.support.small import PUNKT

KINDS = ("0 %", "1 %", "2 %", "5 %", "10 %", "cut", "boilerplate")
BOILERPLATE = "Sign up for our newsletter and never miss a story again. All rights reserved."
EDGES_OF_BINS = (0.0, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


def articles(megabytes: int) -> list[str]:
    """The first articles of the shared Wikipedia."""
    texts: list[str] = []
    size = 0
    for text in wikipedia():
        texts.append(as_read(text))
        size += len(texts[-1].encode())
        if size >= megabytes * 1_000_000:
            break
    return [text for text in texts if text]


def as_read(text: str) -> str:
    """The text as a data set takes it: without short lines."""
    lines = [line.strip() for line in text.split("\n")]
    return "\n".join(line for line in lines if len(line) >= DataConfig.min_characters)


def planted(text: str, number: int) -> str:
    """A copy of the text of the number's kind."""
    kind = KINDS[number % len(KINDS)]
    if kind == "cut":
        return text[: int(len(text) * (0.6 + 0.05 * (number // len(KINDS) % 8)))].strip()
    if kind == "boilerplate":
        return f"{BOILERPLATE}\n{text}\n{BOILERPLATE}"
    words = text.split(" ")
    share = int(kind.split()[0]) / 100
    bits = random_bits(stream_key(0, "benchmark/edits"), number, np.arange(len(words)))
    for index in np.flatnonzero(bits < np.uint64(share * 2**64)).tolist():
        words[index] = f"word{bits[index] % np.uint64(9999)}"
    return " ".join(words)


def tokenizer() -> Tokenizer:
    """BERT's; sentences end at every full stop."""
    vocabulary = BERT_VOCABULARY.read_text().splitlines()
    return Tokenizer(vocabulary, Normalization(lowercase=True, strip_accents=True), PUNKT)


def measure(corpus: Path, similarity: float) -> Iterator[tuple[str, object]]:
    """CPU seconds of the steps, then the edges."""
    config = replace(DataConfig(num_shards=4), deduplicate="near", similarity=similarity)
    blocks = list_blocks([str(corpus)])
    size = sum(block.text_bytes for block in blocks)
    with scratch_context(tokenizer(), config, Buckets.plan(config, size)) as scratch:
        context = replace(scratch.reading(blocks), partitions=2)
        steps = Steps(context)
        started = time.process_time()
        for block in blocks:
            steps.tokenize_block(block)
        near = {"tokenizing, signatures and words": time.process_time() - started}
        for work in (pair_documents, compare_documents):
            started = time.process_time()
            for partition in range(context.partitions):
                work(context.near, partition)
            near[work.__name__] = time.process_time() - started
        started = time.process_time()
        connect_documents(context.near)
        near[connect_documents.__name__] = time.process_time() - started
        yield "near-duplicates", near
        yield "found", dict(next(read_counts([context.near.drops_path])).read)
        paths = [context.near.edges_path(number) for number in range(context.partitions)]
        yield "edges", np.concatenate(list(read_rows(paths, 0, PAIR)))


def exact(pairs: list[tuple[str, str]]) -> np.ndarray:
    sets = (shingle_sets(hash_ngrams(hash_words(pair), 5, pad=True)) for pair in pairs)
    return np.array([jaccard(*both) for both in sets])


def print_recall(similarity: np.ndarray, together: np.ndarray) -> None:
    """Over the similarity of planted pairs."""
    print("similarity     pairs   in one component")
    for low, high in pairwise(EDGES_OF_BINS):
        rows = (similarity >= low) & ((similarity < high) | (high == 1.0))
        if rows.any():
            print(f"{low:.2f} to {high:.2f} {rows.sum():7,}   {together[rows].mean():7.2%}")
    rows = similarity >= 0.85
    print(f"0.85 or more {rows.sum():7,}   {together[rows].mean():7.2%}")


def same_component(edges: np.ndarray, pairs: list[tuple[str, str]]) -> np.ndarray:
    """Whether the two texts of each pair are connected, or equal."""
    ids, kept = components(edges["left_id"], edges["right_id"])
    own = document_ids(*hash_documents([text for pair in pairs for text in pair]))
    rows = np.minimum(np.searchsorted(ids, own), len(ids) - 1)
    label = np.where(ids[rows] == own, kept[rows], own).reshape(-1, 2)
    return label[:, 0] == label[:, 1]


def run_datatrove(python: str, corpus: Path, folder: Path, similarity: float) -> set[int]:
    """Run its pipeline; return the rows that it removes, and print its CPU seconds."""
    bands = Bands.for_similarity(similarity)
    before = cpu_of_children()
    script = Path(__file__).with_name("datatrove_minhash.py")
    arguments = [python, script, corpus, folder, bands.bands, bands.rows]
    environment = {**os.environ, "PYTHONPATH": ""}
    subprocess.run([*map(str, arguments)], check=True, capture_output=True, env=environment)
    cpu = cpu_of_children() - before
    print(f"datatrove      {cpu:8.1f} CPU s in all, with reading and writing")
    return {int(row) for row in (folder / "removed.txt").read_text().split()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--similarity", type=float, default=0.8)
    parser.add_argument("--datatrove", metavar="PYTHON")
    given = parser.parse_args()
    texts = articles(given.megabytes)
    pairs = [(text, as_read(planted(text, number))) for number, text in enumerate(texts[::10])]
    every = [*texts, *(copy for _, copy in pairs)]
    print(f"{len(texts):,} articles, {len(pairs):,} planted copies")
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch, "corpus.jsonl")
        lines = (json.dumps({"id": str(n), "text": text}) for n, text in enumerate(every))
        corpus.write_text("\n".join(lines) + "\n")
        found = dict(measure(corpus, given.similarity))
        print(f"CPU s          {sum(found['near-duplicates'].values()):7.1f}")
        for step, seconds in found["near-duplicates"].items():
            print(f"  {step:34}{seconds:7.1f}")
        print("found         ", found["found"])
        print(f"peak memory    {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000} MB")
        similarity, together = exact(pairs), same_component(found["edges"], pairs)
        print_recall(similarity, together)
        if given.datatrove:
            removed = run_datatrove(given.datatrove, corpus, Path(scratch), given.similarity)
            row = dict(zip(texts, range(len(texts)), strict=False))
            hit = [row[x] in removed or len(texts) + n in removed for n, (x, _) in enumerate(pairs)]
            print("datatrove: of each pair at least one removed")
            print_recall(similarity, np.array(hit))


if __name__ == "__main__":
    main()
