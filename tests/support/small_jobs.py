"""`clozeline` as a separate process, and a small corpus and tokenizer for it."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.sources.sample.articles import make_articles
from clozeline.pipeline.steps.context import JobContext
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, Normalization
from tests.support.small import PUNKT

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "clozeline")
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,;:!?'\"()-"


def clozeline(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; the caller checks the exit code."""
    line = [*COMMAND, *map(str, arguments)]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, **options)


def clozeline_ok(*arguments: object) -> str:
    """The output of a command that must succeed."""
    done = clozeline(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python(*words: object, stdin: str | None = None, **variables: str) -> str:
    """The output of a Python process that must end well; it sees this checkout alone."""
    line = [sys.executable, *map(str, words)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(line, cwd=ROOT, env=env, input=stdin, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


IN_TURN = """
import json, sys
from tests.support.command import invoke
done = [invoke(*line) for line in json.loads(sys.argv[1])]
print(json.dumps([[one.exit_code, one.output] for one in done]))
"""


def clozeline_in_turn(*lines: Iterable[object], **variables: str) -> list[tuple[int, str]]:
    """Exit code and output of each command; one process runs all, since imports take long."""
    words = json.dumps([[str(word) for word in line] for line in lines])
    return [tuple(done) for done in json.loads(python("-c", IN_TURN, words, **variables))]


@contextmanager
def no_survivors(group: int) -> Iterator[None]:
    """Whatever happens in the block, the process group is gone after it."""
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


@contextmanager
def in_own_group(*line: object, **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that is gone after the block, and with it all that it started."""
    words = list(map(str, line))
    with (
        subprocess.Popen(words, cwd=ROOT, start_new_session=True, **options) as process,
        no_survivors(process.pid),
    ):
        yield process


def articles(count: int) -> list[str]:
    """The first articles of the built-in sample, 1.6 kB each on average."""
    return make_articles(0, 0, count)


def write_parquet(path: Path, texts: Sequence[str], *, row_group_size: int = 20) -> Path:
    """A file of one text column; a row group is the smallest block."""
    pq.write_table(pa.table({"text": list(texts)}), path, row_group_size=row_group_size)
    return path


def write_texts(path: Path, texts: Iterable[str]) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def write_tokenizer(folder: Path, texts: Sequence[str]) -> Path:
    """The 500 most frequent words and all characters: the same folder from the same texts."""
    words = Counter(word for text in texts for word in re.findall("[a-z]{2,}", text.lower()))
    pieces = sorted(words, key=lambda word: (-words[word], word))[:500]
    pieces += [*CHARACTERS, *(f"##{character}" for character in CHARACTERS)]
    punkt = PUNKT | {"language": "english", "abbrev_types": ["dr", "mr", "st"]}
    normalization = Normalization(lowercase=True, strip_accents=True)
    Tokenizer([*SPECIAL_TOKENS, *pieces], normalization, punkt).save(folder)
    return folder


def job_context(
    folder: Path, config: DataConfig, tokenizer: Tokenizer, *, text_bytes: int = 0, **more: Any
) -> JobContext:
    """A job over this much text, with its folders: out/ with the tokenizer, and cache/."""
    tokenizer.save(folder / "out" / TOKENIZER)
    (folder / "cache").mkdir(exist_ok=True)
    return JobContext(
        out_dir=folder / "out",
        cache_dir=folder / "cache",
        config=config,
        buckets=Buckets.plan(config, text_bytes),
        tokenizer_digest=tokenizer.digest,
        vocab_size=tokenizer.vocab_size,
        **{"sources_digest": "", **more},
    )


def shard_digests(folder: Path) -> dict[str, str]:
    """The sha256 of each existing shard, by name."""
    shards = [*folder.glob("*-of-*.arrow"), *folder.glob("*-of-*.tar")]
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(shards)}


def without_sources(manifest: Path) -> bytes:
    """The manifest without the lines that depend on the names and times of the source files."""
    lines = manifest.read_bytes().splitlines(keepends=True)
    rest = [line for line in lines if not line.startswith((b'"sources_digest": "', b'"sha256": "'))]
    assert len(rest) == len(lines) - 2
    return b"".join(rest)
