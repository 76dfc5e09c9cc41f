"""What a path is, for the error message of a command that needs another kind.

"wikipedia" -> wikipedia is a folder of Parquet files; give a data set of `clozeline shards`.
"nowhere"   -> nowhere does not exist; check the path.
"""

from collections import Counter

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.paths import AnyPath, names_in

#: The file that marks a folder, and what the folder is; the first one found counts.
KINDS = {
    "manifest.json": "a data set of `clozeline shards`",
    "run.json": "a run of `clozeline pretrain`",
    "classifier.json": "a classifier of `clozeline finetune`",
    "config.json": "a model folder in Hugging Face format",
    "tokenizer.json": "a tokenizer folder",
}
#: Kinds of files, by the end of their names.
FILES = {
    ".parquet": "Parquet", ".jsonl": "JSON lines", ".json": "JSON", ".csv": "CSV", ".tsv": "TSV",
    ".txt": "text", ".xml": "XML", ".bz2": "compressed", ".gz": "compressed", ".arrow": "Arrow",
}  # fmt: skip


def wrong_folder(path: AnyPath, wanted: str) -> InputError:
    """The error for a path that is not `wanted`, such as "a run of `clozeline pretrain`"."""
    if not path.exists():
        return InputError(f"{path} does not exist; check the path.")
    return InputError(f"{path} is {what_is(path)}; give {wanted}.")


def what_is(path: AnyPath) -> str:
    """What a file or folder is, by its files' names."""
    if not path.is_dir():
        return "a file and not a folder"
    names = set(names_in(path))
    for name, kind in KINDS.items():
        if name in names:
            return kind
    visible = [name for name in names if not name.startswith(".")]
    if not visible:
        return "an empty folder"
    (most, number), *_ = Counter(map(_kind_of_file, visible)).most_common()
    if most is None or 2 * number <= len(visible):
        shown = sorted(visible)[:3] + ["..."] * (len(visible) > 3)
        return f"a folder of other files ({', '.join(shown)})"
    return f"a folder of {most} files"


def _kind_of_file(name: str) -> str | None:
    return next((kind for end, kind in FILES.items() if name.endswith(end)), None)
