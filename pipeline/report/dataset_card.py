"""The card of a data set for the Hugging Face Hub: README.md with a YAML head.

The head lists the files of each split, so that `datasets.load_dataset(FOLDER)` opens them. The last
line is a digest of the text above it, by which an edited card is recognized and kept.
"""

import json
import re
from typing import Any

from clozeline.pipeline.common.checksums import is_edited, signed
from clozeline.pipeline.common.packages import own_version
from clozeline.pipeline.common.paths import AnyPath, whole_file
from clozeline.pipeline.common.units import counted
from clozeline.pipeline.dataset.buckets import TRAIN, VALIDATION
from clozeline.pipeline.dataset.manifest import CARD, Manifest, read_manifest
from clozeline.pipeline.dataset.schema import id_type
from clozeline.pipeline.dataset.shards import SUFFIXES
from clozeline.pipeline.report.page import fill_template
from clozeline.pipeline.report.statistics import read_job

HUB_NAME = re.compile(r"hf://[\w-][\w.-]*(/[\w.-]+)?(\?.*)?")  # else it is a folder


def write_card(folder: AnyPath) -> bool:
    """Write the card and return True; keep one that was edited by hand and return False."""
    path = folder / CARD
    if is_edited(path):
        return False
    text = card_text(read_manifest(folder), read_job(folder))
    with whole_file(path) as file:
        file.write(text.encode())
    return True


def card_text(manifest: Manifest, job: dict[str, Any]) -> str:
    """The whole card with its digest; `job` is job.json, for the names of the sources."""
    splits = [split for split in (TRAIN, VALIDATION) if manifest.num_examples(split)]
    title = f"{counted(manifest.num_examples(TRAIN), 'example')} to pretrain BERT"
    options = manifest.config.to_dict()
    if "exclude" in options:
        options["exclude"] = [source_name(source) for source in options["exclude"]]
    text = fill_template(
        "dataset_card.md.jinja",
        title=title,
        front_matter=_front_matter(manifest, splits, title),
        version=own_version(),
        manifest=manifest,
        config=manifest.config,
        options=json.dumps(options, indent=2),
        splits=splits,
        sources=[source_name(source) for source in job.get("sources", ())],
        id_type=str(id_type(manifest.vocab_size)),
    )
    return signed(text, "report")


def source_name(source: str) -> str:
    """The part of a source that can be published: no local folder, no password.

    "/home/ann/wiki/a-*.parquet" -> "a-*.parquet";  "hf://wikimedia/wikipedia?name=x" stays,
    but "hf:///home/ann/wiki?split=test" -> "hf://wiki?split=test"
    """
    if source.startswith("sample:") or HUB_NAME.fullmatch(source):
        return source
    place, mark, query = source.partition("?") if "://" in source else (source, "", "")
    name = re.split(r"[/\\]", place.rstrip("/\\"))[-1]
    return f"hf://{name}{mark}{query}" if source.startswith("hf://") else name


def _front_matter(manifest: Manifest, splits: list[str], title: str) -> str:
    from huggingface_hub import DatasetCardData

    suffix = SUFFIXES[manifest.config.format]
    config = {
        "config_name": "default",
        # `datasets` caches what it has read under a digest of this head, and would return the old
        # rows of a folder whose shards were rebuilt.
        "description": f"dataset digest {manifest.dataset_digest}",
        # `datasets` refuses a split without rows.
        "data_files": [{"split": split, "path": f"{split}-*{suffix}"} for split in splits],
    }
    data = DatasetCardData(
        license="unknown",
        task_categories=["fill-mask"],
        tags=["bert", "clozeline", "masked-language-modeling", "pretraining"],
        pretty_name=title,
        configs=[config],
    )
    return data.to_yaml()
