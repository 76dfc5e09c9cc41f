"""Small files of every kind, made by the commands themselves, and the commands that read them."""

import bz2
import gzip
import json
import lzma
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.pipeline.sentences.punkt import PunktData
from clozeline.pipeline.sentences.splitter import SentenceSplitter
from clozeline.pipeline.sources.formats import list_blocks, read_block
from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from tests.support.small_jobs import articles, write_parquet, write_tokenizer

TEXT = "The house is [MASK] old."
REVIEW = "I sent it back and want a refund."
DOCUMENTS = [text.replace("\n\n", "\n") for text in articles(12)]


@dataclass(frozen=True)
class Reader:
    """A command, or a function that prints; its answer is what it prints or writes."""

    command: tuple[str, ...] | Callable[[], None]
    answer: str = ""  #: pattern of the files; "": standard output
    exit_codes: tuple[int, ...] = (2,)  #: of a refusal


@dataclass(frozen=True)
class Artifact:
    """Files of one kind: `pattern` is mutated in a copy of `folders`, then a reader is run."""

    name: str
    folders: tuple[str, ...]
    pattern: str
    readers: tuple[Reader, ...]
    is_text: bool = False  #: no checksum protects it: other bytes are another text


def print_documents(name: str) -> None:
    """The documents of a source as JSON."""
    texts, rejected = [], []
    for block in list_blocks([name], block_bytes=4000):
        for chunk in read_block(block):
            texts += chunk.texts
            rejected += [f"{bad.where}: {bad.reason}" for bad in chunk.rejected]
    click.echo(json.dumps(texts))
    for line in rejected:
        click.echo(f"rejected {line}", err=True)


def print_ids() -> None:
    """The ids of a text, by all files of a tokenizer folder."""
    tokenizer = load_tokenizer("tokenizer")
    assert tokenizer.punkt is not None
    splitter = SentenceSplitter(PunktData.from_json(tokenizer.punkt))
    sentences, _ = splitter.split("\n".join(DOCUMENTS).encode())
    ids, lengths = SentenceEncoder(tokenizer).encode(sentences)
    click.echo(json.dumps([ids.tolist(), lengths.tolist()]))


def dump_of(documents: Sequence[str]) -> bytes:
    """A MediaWiki dump; the text of an article is on the lines of one element."""
    pages = [
        f"<page><title>Page {number}</title><ns>0</ns><id>{number}</id><revision><id>1</id>"
        f"<text>{text.replace('&', '&amp;').replace('<', '&lt;')}</text></revision></page>\n"
        for number, text in enumerate(documents)
    ]
    return f"<mediawiki>\n{''.join(pages)}</mediawiki>\n".encode()


def write_sources(folder: Path) -> None:
    """The same documents in every format."""
    folder.mkdir()
    plain = "\n\n\n".join(DOCUMENTS).encode()
    lines = "".join(json.dumps({"text": text}) + "\n" for text in DOCUMENTS).encode()
    pages = "".join(
        f'<doc id="{number}" url="" title="Page {number}">\nPage {number}\n\n{text}\n</doc>\n'
        for number, text in enumerate(DOCUMENTS)
    )
    dump = dump_of(DOCUMENTS)
    table = pa.table({"text": DOCUMENTS, "id": list(range(len(DOCUMENTS)))})
    options = {"write_page_checksum": True, "row_group_size": 5}
    pq.write_table(table, folder / "a.parquet", **options)
    contents = {"a.txt": plain, "a.jsonl": lines, "wiki_00": pages.encode(), "a.xml": dump}
    packed = {"a.txt.gz": gzip.compress(plain, mtime=0), "a.jsonl.bz2": bz2.compress(lines)}
    packed |= {"a.xml.xz": lzma.compress(dump), "a.xml.bz2": bz2.compress(dump)}
    for name, data in (contents | packed).items():
        (folder / name).write_bytes(data)


def source(name: str, *, is_text: bool) -> Artifact:
    reader = Reader(partial(print_documents, f"sources/{name}"))
    return Artifact(f"source {name}", ("sources",), f"sources/{name}", (reader,), is_text)


# --- what the commands write ----------------------------------------------------------------------

FLAGS = (
    "--preset=bert-tiny --batch-size=4 --max-steps=4 --log-every=1 --eval-every=0 --save-every=1 "
    "--keep=9"
)
ROWS = "sample:reviews?rows=40&start=9"
TUNE = "--text=content --label=label --epochs=1 --learning-rate=1e-3 --no-baseline"
SHARDS = "shards good.parquet --tokenizer tokenizer --validation=0.2 --max-seq-length=32"
MAKE = (
    f"{SHARDS} --out data --format arrow --workers=1 --num-shards=2",
    f"{SHARDS} --out web --format webdataset --workers=1 --num-shards=2",
    f"pretrain data --out run {FLAGS}",
    f"finetune run {ROWS} --out classifier {TUNE}",
    "export run --out=hf",
    f"finetune run {ROWS} --out cls {TUNE} --pooling=cls",  # as transformers' BERT
    "export cls --out=hf-classifier",
)


def write_artifacts(folder: Path, run: Callable[[Path, str], None]) -> None:
    """Every artifact; `run` executes a command in a folder and raises where it fails."""
    write_parquet(folder / "good.parquet", articles(30))
    write_tokenizer(folder / "tokenizer", articles(30))
    write_sources(folder / "sources")
    for command in MAKE:
        run(folder, command)
    shutil.rmtree(folder / "run/checkpoints/step-00000004")  # as if it was killed after step 3


FILL = Reader(("fill", "run", TEXT))
EVALUATE = Reader(("evaluate", "run", "data", "--limit=8"))
EVALUATE_TRAIN = Reader(("evaluate", "run", "data", "--limit=8", "--split=train"))
VERIFY = Reader(("verify", "data"), exit_codes=(1, 2))
INSPECT = Reader(("inspect", "data"))
RESUME = tuple(f"pretrain data --out=run --resume {FLAGS}".split())
CONTINUE = Reader(RESUME, answer="run/checkpoints/step-00000004/*")
EXPORT = Reader(("export", "run", "--out=again"), answer="again/**/*")

ARTIFACTS = (
    Artifact(
        "Arrow shard",
        ("data", "run"),
        "data/*-of-*.arrow",
        (VERIFY, INSPECT, EVALUATE, EVALUATE_TRAIN),
    ),
    Artifact(
        "tar shard",
        ("web", "run"),
        "web/*-of-*.tar",
        (
            Reader(("verify", "web"), exit_codes=(1, 2)),
            Reader(("inspect", "web")),
            Reader(("evaluate", "run", "web", "--limit=8")),
        ),
    ),
    Artifact(
        "manifest",
        ("data", "run"),
        "data/manifest.json",
        (VERIFY, INSPECT, EVALUATE, Reader(("report", "data"), answer="data/report.html")),
    ),
    Artifact(
        "tokenizer of shards", ("data", "run"), "data/tokenizer/*", (VERIFY, INSPECT, EVALUATE)
    ),
    Artifact("tokenizer", ("tokenizer",), "tokenizer/*", (Reader(print_ids),)),
    Artifact(
        "checkpoint",
        ("data", "run"),
        "run/checkpoints/step-00000003/*",
        (FILL, EVALUATE, CONTINUE, EXPORT),
    ),
    Artifact("run.json", ("data", "run"), "run/run.json", (FILL, EVALUATE, CONTINUE, EXPORT)),
    Artifact("tokenizer of a run", ("data", "run"), "run/tokenizer/*", (FILL, EVALUATE, EXPORT)),
    Artifact(
        "classifier",
        ("classifier",),
        "classifier/**/*",
        (Reader(("predict", "classifier", REVIEW)),),
    ),
    Artifact("export of a run", ("hf",), "hf/*", (Reader(("fill", "hf", TEXT)),)),
    Artifact(
        "export of a classifier",
        ("hf-classifier",),
        "hf-classifier/*",
        (Reader(("predict", "hf-classifier", REVIEW)),),
    ),
    *(
        source(name, is_text=False)
        for name in ("a.txt.gz", "a.jsonl.bz2", "a.xml.xz", "a.xml.bz2", "a.parquet")
    ),
    *(source(name, is_text=True) for name in ("a.txt", "a.jsonl", "wiki_00", "a.xml")),
)


def untouched(data: bytes, start: int, stop: int) -> list[str]:
    """The documents of a text source that lie outside of data[start:stop] and a few bytes more."""
    found, at = [], 0
    for text in DOCUMENTS:
        for form in (text, json.dumps(text)[1:-1]):
            begin = data.find(form.encode(), at)
            if begin >= 0:
                end = at = begin + len(form.encode())
                # The marks around a document are part of it.
                if stop < begin - 150 or start > end + 60:
                    found.append(text)
                break
    return found


def files_of(artifact: Artifact, folder: Path) -> list[Path]:
    """The files that are mutated, by their names in the folder, without empty ones."""
    paths = [path for path in folder.glob(artifact.pattern) if path.is_file()]
    skipped = {"report.html", "README.md", "job.json", ".lock"}
    names = [path for path in paths if path.name not in skipped and path.stat().st_size]
    return sorted(path.relative_to(folder) for path in names)


def scratch_root() -> Path:
    """Where trials write: in memory, if there is a file system for it."""
    shared = Path("/dev/shm")
    usual = Path(os.environ.get("TMPDIR", "/tmp"))
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else usual
