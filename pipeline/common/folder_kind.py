"""What a folder is, which command usually follows, and the error where another kind is needed.

"work/run"  -> "run"
"wikipedia" -> wikipedia is a folder of Parquet files; give a data set of `clozeline shards`.
"nowhere"   -> nowhere does not exist; check the path.
"""

from collections import Counter
from typing import NamedTuple

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_owner import first_names
from clozeline.pipeline.common.paths import AnyPath, names_in
from clozeline.pipeline.common.store import exists, is_file


class Kind(NamedTuple):
    marker: str  # the file that makes a folder one of this kind
    what: str
    next: str = ""  # the command that usually follows


#: By name; the first whose marker is there counts.
KINDS = {
    "data set": Kind(
        "manifest.json", "a data set of `clozeline shards`", "pretrain {folder} --out {run}"
    ),
    "run": Kind(
        "run.json",
        "a run of `clozeline pretrain`",
        "finetune {folder} TRAIN.csv --out {classifier}",
    ),
    "classifier": Kind(
        "classifier.json", "a classifier of `clozeline finetune`", "predict {folder} TEXT"
    ),
    "ONNX": Kind("onnx.json", "an ONNX folder of `clozeline export`"),
    "Hugging Face": Kind("config.json", "a model folder in Hugging Face format"),
    "tokenizer": Kind("tokenizer.json", "a tokenizer folder"),
}
#: Kinds of files, by the end of their names.
FILES = {
    ".parquet": "Parquet", ".jsonl": "JSON lines", ".json": "JSON", ".csv": "CSV", ".tsv": "TSV",
    ".txt": "text", ".xml": "XML", ".bz2": "compressed", ".gz": "compressed", ".arrow": "Arrow",
}  # fmt: skip


def kind_of(folder: AnyPath) -> str | None:
    """The key of KINDS whose marker the folder has; None without one.

    Raises StoreError where a store does not say.
    """
    return next((name for name, kind in KINDS.items() if is_file(folder / kind.marker)), None)


def wrong_folder(path: AnyPath, wanted: str) -> InputError:
    """The error for a path that is not `wanted`, such as "a run of `clozeline pretrain`"."""
    if not exists(path):
        return InputError(f"{path} does not exist; check the path.")
    return InputError(f"{path} is {what_is(path)}; give {wanted}.")


def what_is(path: AnyPath) -> str:
    """What a file or folder is, by its files' names."""
    if not path.is_dir():
        return "a file and not a folder"
    if kind := kind_of(path):
        return KINDS[kind].what
    visible = [name for name in names_in(path) if not name.startswith(".")]
    if not visible:
        return "an empty folder"
    (most, number), *_ = Counter(map(_kind_of_file, visible)).most_common()
    if most is None or 2 * number <= len(visible):
        return f"a folder of other files ({first_names(sorted(visible))})"
    return f"a folder of {most} files"


def _kind_of_file(name: str) -> str | None:
    return next((kind for end, kind in FILES.items() if name.endswith(end)), None)
