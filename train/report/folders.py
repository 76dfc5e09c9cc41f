"""The page of the given folders: at most one data set, four runs and one classifier.

{"data set": [work/shards], "run": [work/run], "classifier": []}  ->  HTML with two chapters

A data set alone needs no torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from clozeline.pipeline.common.errors import InputError, check_packages
from clozeline.pipeline.common.folders import kind_of, wrong_folder
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.report.page import Chapter, html_page
from clozeline.train.store.local_folder import local_copy

#: How many folders of each kind a page can show together.
MOST = {"data set": 1, "run": 4, "classifier": 1}


def sorted_by_kind(folders: Iterable[AnyPath]) -> dict[str, list[Any]]:
    """The folders by the keys of MOST; runs and classifiers of a store as local copies.

    Raises InputError for another folder, or for too many of a kind.
    """
    by_kind: dict[str, list[Any]] = {kind: [] for kind in MOST}
    for folder in folders:
        kind = kind_of(folder)
        if kind not in MOST:
            raise wrong_folder(folder, "a data set, a run or a classifier")
        by_kind[kind].append(folder if kind == "data set" else local_copy(folder))
    for kind, most in MOST.items():
        if len(by_kind[kind]) > most:
            raise InputError(
                f"{len(by_kind[kind])} folders are a {kind}; a page shows at most {most}."
            )
    return by_kind


def page_of(by_kind: Mapping[str, Sequence[Any]], *, title: str) -> str:
    """The page as its folders are now. Raises InputError for what cannot be read."""
    check_packages("a report", "jinja2", "matplotlib")
    chapters = [
        _dataset_chapter(folder, read_manifest(folder).dataset_digest)
        for folder in by_kind["data set"]
    ]
    if by_kind["run"]:
        from clozeline.train.report.run_chapter import run_chapter

        chapters.append(run_chapter(by_kind["run"]))
    for folder in by_kind["classifier"]:
        from clozeline.train.report.classifier_chapter import classifier_chapter

        chapters.append(classifier_chapter(folder))
    return html_page(title, chapters)


@lru_cache(maxsize=1)
def _dataset_chapter(folder: AnyPath, digest: str) -> Chapter:
    """Read once for each digest: a reload is quick while a run trains."""
    from clozeline.pipeline.report.sections import dataset_chapter

    return dataset_chapter(folder)
