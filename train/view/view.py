"""The site of `clozeline view` for the given folders, and of `clozeline report`.

a data set   Data set, Examples     a run   Curves     a classifier   Classifier, Predictions
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_kind import kind_of, wrong_folder
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.view.dataset import dataset_tab
from clozeline.pipeline.view.examples import ExamplePages
from clozeline.pipeline.view.site import Site

#: How many folders of each kind the pages can show together.
MOST = {"data set": 1, "run": 4, "classifier": 1}


def make_site(folders: Sequence[AnyPath]) -> Site:
    """The pages of at most one data set, four runs and one classifier.

    Raises InputError for another folder or number of folders, and where a run cannot read the data
    set. A data set alone needs no torch.
    """
    of_kind: dict[str, list[Any]] = {kind: [] for kind in MOST}
    for folder in folders:
        of_kind[shown_kind(folder)].append(folder)
    for kind, most in MOST.items():
        if len(of_kind[kind]) > most:
            raise InputError(
                f"{len(of_kind[kind])} folders are a {kind}; a page shows at most {most}."
            )
    runs, data_sets, classifiers = of_kind["run"], of_kind["data set"], of_kind["classifier"]
    site = Site(
        title=", ".join(map(_name, folders)),
        paths=", ".join(map(as_given, folders)),
        tabs=[dataset_tab(folder) for folder in data_sets],
    )
    if runs or classifiers:
        return _with_models(site, data_sets, runs, classifiers)
    return replace(site, tabs=[*site.tabs, ExamplePages(data_sets[0]).tab()])


def _with_models(
    site: Site, data_sets: list[AnyPath], runs: list[Any], classifiers: list[Any]
) -> Site:
    from clozeline.train.view.classifier_page import ClassifierPages
    from clozeline.train.view.curves import curve_tab
    from clozeline.train.view.predictions import PredictionPages

    classifier = ClassifierPages(classifiers[0]) if classifiers else None
    tabs = [*site.tabs, *(ExamplePages(folder).tab() for folder in data_sets)]
    downloads = {}
    if runs:
        tabs.append(curve_tab(runs))
    if classifier:
        predictions = PredictionPages(classifier.predictions)
        tabs += [classifier.tab(), predictions.tab()]
        downloads["/predictions.csv"] = predictions.csv
    return replace(site, tabs=tabs, downloads=downloads)


def _name(folder: AnyPath) -> str:
    """The last part of the path that the user gave: "s3://bucket/wiki/run/" -> "run"."""
    name = as_given(folder).rstrip("/").rpartition("/")[2]
    return folder.resolve().name if name in ("", ".", "..") else name


def shown_kind(folder: AnyPath) -> str:
    """A key of MOST. Raises InputError for a folder that is none of them."""
    kind = kind_of(folder)
    if kind not in MOST:
        raise wrong_folder(folder, "a data set, a run or a classifier")
    return kind
