"""Text to shards: CPU seconds and MB per second and core, compared with the usual libraries.

    python tests/benchmarks/pipeline_speed.py [MEGABYTES ...]      (default: 60 250)

Wikipedia, BERT's vocabulary and NLTK's parameters where CLOZELINE_DATA is set, else articles of
`sample:` and a tokenizer learned from them. A MB is a million bytes of UTF-8. The reference chain
is slow, so it gets only the start of the text. Our side is the steps of one worker, called one by
one with empty caches, outside of the graph. All have one thread; `job_cost.py` has the command.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.sentences.punkt import PunktData
from clozeline.pipeline.sources.block import Block
from clozeline.pipeline.sources.formats import list_blocks, read_block
from clozeline.pipeline.sources.sample.articles import make_articles
from clozeline.pipeline.sources.sample.source import count_articles
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.steps.finish import finish_dataset
from clozeline.pipeline.steps.steps import Steps
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.train_tokenizer import make_tokenizer
from tests.benchmarks.measuring import BERT_VOCABULARY, DATA, timed
from tests.benchmarks.reference_chain import ReferenceChain
from tests.support.nltk_sentences import nltk_splitter

REFERENCE_MB = 8.0
STRAW_MAN = 0.5  # MB/s: a slower chain would not be a fair comparison
SAMPLE_ROWS = 1000  # per row group
CONFIG = DataConfig()


def main() -> None:
    """A table of the reference and our pipeline at each size."""
    sizes = [float(word) for word in sys.argv[1:]] or [60.0, 250.0]
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        files = text_files(scratch, max(sizes))
        tokenizer = tokenizer_for(files, scratch / "tokenizer")
        source = files[0].parent if DATA else "sample:articles"
        print(f"{source}, {tokenizer.vocab_size:,} tokens\n")
        print(f"{'':34}{'MB':>7}{'CPU s':>9}{'MB/s':>8}{'x chain':>9}")
        reference = print_reference(beginning(files, REFERENCE_MB), tokenizer, scratch)
        for size in sizes:
            print_ours(beginning(files, size), tokenizer, scratch / f"{size:g}", reference)


def text_files(scratch: Path, megabytes: float) -> list[Path]:
    """Parquet files with that much text, or with all there is."""
    if DATA:
        return sorted(Path(DATA, "wikipedia").glob("*.parquet"))
    path = scratch / "sample.parquet"
    with pq.ParquetWriter(path, pa.schema({"text": pa.string()})) as writer:
        for start in range(0, count_articles(int(megabytes * 1e6)), SAMPLE_ROWS):
            writer.write_table(pa.table({"text": make_articles(0, start, start + SAMPLE_ROWS)}))
    return [path]


def tokenizer_for(files: list[Path], folder: Path) -> Tokenizer:
    """A tokenizer folder like that of `clozeline tokenizer`."""
    kind = {"vocab": BERT_VOCABULARY} if DATA else {"vocab_size": 8192}
    made = make_tokenizer(
        [str(files[0])], out=folder, language="english", text_columns=CONFIG.text_columns, **kind
    )
    return made.tokenizer


def beginning(files: list[Path], megabytes: float) -> list[Block]:
    """The first blocks, up to about that much text."""
    blocks: list[Block] = []
    for block in list_blocks([str(file) for file in files]):
        if sum(b.text_bytes for b in blocks) < 0.95 * megabytes * 1e6:
            blocks.append(block)
    return blocks


def texts_of(blocks: list[Block]) -> list[str]:
    return [text for block in blocks for piece in read_block(block) for text in piece.texts]


def size_of(texts: list[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def print_reference(blocks: list[Block], tokenizer: Tokenizer, scratch: Path) -> float:
    """Print the libraries alone and the whole chain; return the chain's MB/s."""
    assert tokenizer.punkt is not None
    splitter = nltk_splitter(PunktData.from_json(tokenizer.punkt))
    chain = ReferenceChain(splitter=splitter, tokenizer=tokenizer)
    texts = texts_of(blocks)
    texts = texts[: round(len(texts) * REFERENCE_MB / max(size_of(texts), REFERENCE_MB))]
    documents, libraries = timed(lambda: chain.tokenize(texts))
    _, loops = timed(lambda: chain.write(documents, scratch / "reference.arrow"))
    megabytes = size_of(texts)
    reference = megabytes / (libraries + loops)
    print_row("Punkt and encode_batch alone", megabytes, libraries, reference)
    print_row("reference chain", megabytes, libraries + loops, reference)
    if reference < STRAW_MAN:
        sys.exit(f"the reference chain is slower than {STRAW_MAN} MB/s: nothing to compare with")
    return reference


def print_ours(blocks: list[Block], tokenizer: Tokenizer, out: Path, reference: float) -> None:
    """The total, then a row for each step."""
    megabytes = size_of(texts_of(blocks))
    steps, seconds = timed(lambda: make_shards(blocks, tokenizer, out))
    print_row(f"clozeline, {megabytes:.0f} MB", megabytes, seconds, reference)
    for step, part in steps.items():
        print(f"  {step:39}{part:9.2f}{megabytes / part:8.1f}{part / seconds:9.1%}")


def make_shards(blocks: list[Block], tokenizer: Tokenizer, out: Path) -> dict[str, float]:
    """What a worker does, block by block and shard by shard; CPU seconds of each step."""
    tokenizer.save(out / TOKENIZER)
    context = JobContext(
        out_dir=out,
        cache_dir=out,
        config=CONFIG,
        buckets=Buckets.plan(CONFIG, sum(block.text_bytes for block in blocks)),
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        sources_digest="",
    )
    steps = Steps(context.reading(blocks))
    started = time.process_time()
    for block in blocks:
        steps.tokenize_block(block)
    tokenized = time.process_time()
    for bucket in range(len(context.buckets)):
        steps.build_shard(bucket)
    finish_dataset(steps)
    return {"tokenize": tokenized - started, "build": time.process_time() - tokenized}


def print_row(name: str, megabytes: float, seconds: float, reference: float) -> None:
    speed = megabytes / seconds
    print(f"{name:34}{megabytes:7.1f}{seconds:9.2f}{speed:8.2f}{speed / reference:9.1f}")


if __name__ == "__main__":
    main()
