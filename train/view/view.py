"""The site of `clozeline view` for the given folders, and of `clozeline report`.

a data set   Data set, Examples     a run        Curves, Learning, Try it
a classifier Classifier, Try it     a data set and a run: Examples, most wrong first
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_kind import kind_of, wrong_folder
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.view.dataset import dataset_tab
from clozeline.pipeline.view.examples import ExamplePages
from clozeline.pipeline.view.site import Site

if TYPE_CHECKING:
    from clozeline.train.view.run_model import RunModel
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
    from clozeline.train.view.curves import curve_tab
    from clozeline.train.view.learning import LearningPages
    from clozeline.train.view.predictions import PredictionPages
    from clozeline.train.view.run_model import RunModel
    from clozeline.train.view.try_it import ClassifierPages, TryPages

    models = [RunModel(run) for run in runs]
    classifier = ClassifierPages(classifiers[0]) if classifiers else None
    forms = TryPages(models, classifier)
    tabs = [*site.tabs, *(_examples(folder, models).tab() for folder in data_sets)]
    actions: dict[str, Any] = {}
    downloads = {}
    if runs:
        tabs += [curve_tab(runs), LearningPages(runs).tab()]
        actions["/fill"] = forms.fill
    if classifier:
        predictions = PredictionPages(classifier.predictions)
        tabs += [classifier.tab(), predictions.tab()]
        actions["/classify"] = classifier.classify
        downloads["/predictions.csv"] = predictions.csv
    return replace(site, tabs=[*tabs, forms.tab()], actions=actions, downloads=downloads)


def _examples(folder: AnyPath, models: "Sequence[RunModel]") -> ExamplePages:
    """With the guesses of the first run, if there is one."""
    if not models:
        return ExamplePages(folder)
    model = models[0]
    pages = ExamplePages(folder, guess=model.guess_rows, checkpoint=model.newest_weights)
    model.check_fits(folder, pages.manifest)
    return pages


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
