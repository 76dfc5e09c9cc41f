"""Damages, the command that meets each, and the one line that it must end with.

To add one, write what does the damage and a row. The folder has what `make_folder` makes; a command
runs in it, so that its paths are short.
"""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.json_files import sealed
from tests.support.small import PUNKT, SENTENCE, small_tokenizer
from tests.support.small_data import write_data_set
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY

DEEP = "[" * 200_000
CUT = gzip.compress(bytes(range(97, 123)) * 4000)[:200]


@dataclass(frozen=True)
class Trial:
    """`harm` is done to a copy of the folder; then the command must end with `line`."""

    name: str
    harm: Callable[[Path], Any]
    command: str  #: split at spaces; `{nl}` and the like are put in after that
    line: str  #: a part of the only line on standard error
    exit_code: int = 2


def make_folder(folder: Path) -> None:
    """data/, run/, tokenizer/, text.txt and rows.csv."""
    write_data_set(folder / "data", train=(6,), validation=(4,))
    model = BertForPretraining(TINY)
    write_small_run(folder / "run", model, small_tokenizer(), max_seq_length=16)
    small_tokenizer(PUNKT).save(folder / "tokenizer")
    (folder / "text.txt").write_text(f"{SENTENCE}.\n\n" * 3)
    rows = [f"{SENTENCE[:20]} {i},{'ab'[i % 2]}" for i in range(12)]
    (folder / "rows.csv").write_text("\n".join(["text,label", *rows]))


def write(name: str, content: str | bytes) -> Callable[[Path], Any]:
    """Put a file in the place of another."""
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def nothing(folder: Path) -> None:
    """The command itself is wrong."""


def change(name: str, **values: Any) -> Callable[[Path], Any]:
    """Change values of a JSON object, and seal it again if it was sealed."""

    def harm(folder: Path) -> None:
        found = json.loads((folder / name).read_bytes()) | values
        (folder / name).write_text(json.dumps(sealed(found) if "sha256" in found else found))

    return harm


def hugging_face(**values: Any) -> Callable[[Path], Any]:
    """A folder with this config.json."""
    config = {"architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 100}

    def harm(folder: Path) -> None:
        (folder / "hf").mkdir()
        (folder / "hf/config.json").write_text(json.dumps(config | values))

    return harm


def pipe_of_weights(folder: Path) -> None:
    hugging_face()(folder)
    shutil.copy(folder / "tokenizer/vocab.txt", folder / "hf")
    os.mkfifo(folder / "hf/model.safetensors")


def binary_labels(folder: Path) -> None:
    table = pa.table({"text": ["a", "b"], "label": pa.array([b"\xff", b"a"], pa.binary())})
    pq.write_table(table, folder / "rows.parquet")


def finetune(rows: str) -> str:
    return f"finetune run {rows} --out c --epochs=1 --learning-rate=1e-3 --no-baseline"


def shards(source: str) -> str:
    return f"shards {source} --tokenizer tokenizer --out out --workers=1"


WITHOUT_CACHE = "shards text.txt --tokenizer tokenizer --out out --token-cache=none"
TRIALS = (
    # --- our own JSON, of every shape ---
    Trial("a manifest with wrong types", change("data/manifest.json", token_counts="x"),
          "inspect data", "token_counts is 'x'; it is of another type"),
    Trial("a manifest with a config of a wrong type",
          lambda f: change("data/manifest.json", config=json.loads(
              (f / "data/manifest.json").read_bytes())["config"] | {"seed": 0.5})(f),
          "inspect data", "seed is 0.5; give it as int"),
    Trial("negative rows", lambda f: change("data/manifest.json", shards=[
              shard | {"rows": -1} for shard in json.loads(
                  (f / "data/manifest.json").read_bytes())["shards"]])(f),
          "inspect data", "data/manifest.json cannot be read ("),
    Trial("a changed run.json", lambda f: write("run/run.json", (f / "run/run.json").read_text()
              .replace('"seed": 0', '"seed": 1'))(f),
          "fill run [MASK]", "its content has changed since it was written"),
    Trial("a state that is nested too deep",
          write("run/checkpoints/step-00000001/state.json", DEEP),
          "fill run [MASK]", "state.json cannot be read (maximum recursion depth exceeded"),
    *(Trial(f"{name}, {content[:9]!r}, for {command}", write(name, content), command,
            f"{name} cannot be read (")
      for name, command in (
          ("data/manifest.json", "inspect data"), ("data/manifest.json", "report data"),
          ("run/run.json", "report run"), ("run/run.json", "fill run [MASK]"),
          ("run/summary.json", "export run --out out"))
      for content in (DEEP, "[]", '{"model": {"wheels": 4}}', "{", "")),
    Trial("ten million layers", hugging_face(num_hidden_layers=10**7),
          "fill hf [MASK]", "num_hidden_layers is 10000000; give at most 1,000."),
    Trial("rope_parameters that are a list",
          hugging_face(model_type="modernbert", architectures=["ModernBertForMaskedLM"],
                       rope_parameters=[5]),
          "fill hf [MASK]", "rope_parameters is [5], not an object."),
    Trial("a changed tokenizer", lambda f: write("tokenizer/vocab.txt", (
              f / "tokenizer/vocab.txt").read_text().replace("cat", "cot"))(f),
          shards("text.txt"), "tokenizer/vocab.txt cannot be read (its content is not that of SHA"),
    Trial("a folder above the tokenizer", nothing,
          "shards text.txt --tokenizer data --out out",
          "data is not a tokenizer folder (it has no tokenizer.json); give data/tokenizer"),
    Trial("no tokenizer", nothing, "shards text.txt --tokenizer nowhere --out out",
          "it has no tokenizer.json); make one with `clozeline tokenizer"),
    Trial("another punkt.json", write("tokenizer/punkt.json", "nonsense"), shards("text.txt"),
          "tokenizer/punkt.json cannot be read (its content is not that of SHA"),
    *(Trial(f"a punkt.json that is {content} without sums", lambda f, content=content: (
              write("tokenizer/punkt.json", content)(f), (f / "tokenizer/SHA256SUMS").unlink()),
            shards("text.txt"), line)
      for content, line in (("nonsense", "punkt.json cannot be read (Expecting"),
                            ('{"language":NaN}', "tokenizer: Out of range float"),
                            ('{"language":1e999}', "tokenizer: Out of range float"))),
    # --- numbers, labels, rows ---
    Trial("no examples", nothing, finetune("rows.csv") + " --max-examples=0",
          "--max-examples is 0; it must be 2 to"),
    Trial("a huge vocabulary", nothing,
          f"tokenizer text.txt --vocab-size={1 << 63} --out t", "'--vocab-size'"),
    Trial("labels that are no text", binary_labels, finetune("rows.parquet"),
          "column 'label' is not text"),
    Trial("one row of each class", write("two.csv", "text,label\nthe cat,a\nthe dog,b\n"),
          finetune("two.csv"),
          "has too few rows to hold some out"),
    Trial("a header that is not UTF-8", write("rows.csv", b"te\xffxt,label\na,b\n"),
          finetune("rows.csv"), "the names of its columns are not UTF-8; if they are in Latin-1"),
    # --- names ---
    Trial("zip:// on no zip", nothing, shards("zip://a.txt::text.txt"), "cannot be opened: "),
    Trial("a dangling link", lambda f: (f / "link.txt").symlink_to("nowhere"),
          shards("link.txt"), "link.txt: no such file"),
    Trial("an output that is a dangling link", lambda f: (f / "out").symlink_to("no/where"),
          shards("text.txt"), "cannot create the folder out (File exists)"),
    Trial("a name of 300 characters", nothing, shards("x" * 300), "x: no such file; check the p"),
    Trial("a line end in a name", nothing, shards("no{nl}file.txt"), "no\\nfile.txt: no such file"),
    Trial("weights that are a pipe", pipe_of_weights, "fill hf [MASK]",
          "model.safetensors is not a regular file"),
    Trial("a tokenizer folder for shards", nothing, "pretrain tokenizer --out x",
          "tokenizer is a tokenizer folder; give a data set of `clozeline shards"),
    Trial("a file for --out", write("file", "mine"),
          shards("text.txt").replace("out out", "out file"),
          "file is a file; give --out a folder."),
    Trial("a file for the token cache", nothing, shards("text.txt") + " --token-cache rows.csv",
          "rows.csv (File exists); give another path."),
    *(Trial(f"a name that is {what}", write("options.toml", f'out = "{name}"\nsources = ["a.txt"]\n'
                                            "vocab_size = 200"),
            "tokenizer --config options.toml", "is not a path; give the name of a file or folder.")
      for what, name in (("empty", ""), ("no path", r"a\u0000b"))),
    # --- options that do not go together ---
    Trial("a budget for a tokenizer", nothing,
          "tokenizer text.txt?tokens=5M --vocab-size=200 --out t",
          "text.txt: tokens= is for `clozeline shards`"),
    *(Trial(line, nothing, f"tokenizer text.txt --out t {options}", line)
      for options, line in (
          ("--vocab-size=200 --text-columns=b", "--text-columns b does nothing"),
          ("", "give one of --vocab FILE and --vocab-size N"),
          ("--vocab=tokenizer/vocab.txt --model=bpe", "--model is for learning a vocabulary"),
          ("--vocab-size=400 --model=bpe --strip-accents", "--model bpe keeps accents"),
          ("--vocab-size=200 --model=bpe", "--vocab-size 200 has no room for the 256 bytes"))),
    Trial("a dry run without a text", write("none.jsonl", '{"body": "One."}\n' * 4),
          shards("none.jsonl") + " --dry-run", "every sampled document was rejected, 4 in all; "),
    Trial("a dry run of blanks", write("blank.txt", " \n" * 9), shards("blank.txt") + " --dry-run",
          "the sampled parts of the sources have no text; give"),
    Trial("our own options behind the dashes", nothing,
          "shards text.txt --tokenizer tokenizer --out out -- --job_name=a --seed=2 --pairs=none",
          "neither Beam nor the runner knows --seed=2 --pairs=none;"),
    Trial("a dry run elsewhere", nothing, shards("text.txt") + " --dry-run -- --runner=FlinkRunner",
          "--dry-run runs on this machine; leave out -- and what follows it."),
    Trial("near-duplicates without a token cache", nothing,
          f"{WITHOUT_CACHE} --deduplicate=near -- --job_name=mine",
          "--token-cache none: --deduplicate near need one; leave it out."),
    Trial("another data set without a token cache", nothing,
          f"{WITHOUT_CACHE} --overwrite -- --job_name=mine",
          "--overwrite needs a token cache; leave out --token-cache none, or remo"),
    Trial("no token cache on this machine", nothing, WITHOUT_CACHE,
          "--token-cache none: workers and tasks"),
    # --- sources without text ---
    Trial("an empty source", write("empty.txt", b""), shards("empty.txt"),
          "empty.txt; give a source that is not empty."),
    Trial("short documents", write("short.txt", b"One.\n\nTwo.\n"), shards("short.txt"),
          "short_document 2"),
    Trial("JSON over several lines", write("pretty.json", b'{\n  "text": "One."\n}\n'),
          shards("pretty.json"), "is JSON over several lines, not plain text; write an "),
    Trial("no such column", write("none.jsonl", '{"body": "One.", "id": 1}\n' * 4),
          shards("none.jsonl") + " --max-rejected=1",
          "none.jsonl: byte 0 (no 'text' in the JSON object; its keys are body, id). Check "
          "--text-columns and the format of the sources."),
    Trial("a tokenizer without a text", write("none.jsonl", '{"body": "One."}\n' * 4),
          "tokenizer none.jsonl --vocab-size=200 --out t", "every document was rejected, 4"),
    # --- cut ---
    Trial("a tokenizer from a cut archive", write("text.txt.gz", CUT),
          "tokenizer text.txt.gz --vocab-size=100 --out t", "text.txt.gz is not whole: truncated"),
)  # fmt: skip
