"""The site of `clozeline view` for the given folders, also as the file of a report.

a data set   Examples               a run        Curves, Learning, Try it
a classifier Classifier, Try it     a data set and a run: Examples, most wrong first
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clozeline.pipeline.commandline.given_paths import as_given
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_kind import wrong_folder
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.dataset.manifest import MANIFEST
from clozeline.pipeline.report.html import check_report
from clozeline.pipeline.view.examples import ExamplePages
from clozeline.pipeline.view.site import LIBRARIES, Site, Tab

if TYPE_CHECKING:
    from clozeline.train.view.run_model import RunModel

#: Names that only a folder of this kind has.
KINDS = {"run": "run.json", "classifier": "classifier.json", "data set": MANIFEST}


def make_site(folders: Sequence[AnyPath]) -> Site:
    """The pages of at most one data set, four runs and one classifier.

    Raises InputError for another folder or number of folders, and where a run cannot read the data
    set. A data set alone needs no torch.
    """
    check_report(None, LIBRARIES)
    of_kind: dict[str, list[AnyPath]] = {kind: [] for kind in KINDS}
    for folder in folders:
        of_kind[kind_of_folder(folder)].append(folder)
    for kind, most in (("data set", 1), ("run", 4), ("classifier", 1)):
        if len(of_kind[kind]) > most:
            raise InputError(
                f"{len(of_kind[kind])} folders are a {kind}; a page shows at most {most}."
            )
    runs, data_sets, classifiers = of_kind["run"], of_kind["data set"], of_kind["classifier"]
    title = ", ".join(map(as_given, folders))
    if not runs and not classifiers:
        return Site(title=title, tabs=[ExamplePages(data_sets[0]).tab()])
    return _site_with_models(title, data_sets, runs, classifiers)


def _site_with_models(
    title: str, data_sets: list[AnyPath], runs: list[Any], classifiers: list[Any]
) -> Site:
    from clozeline.train.view.curves import CurvePages
    from clozeline.train.view.learning import LearningPages
    from clozeline.train.view.run_model import RunModel
    from clozeline.train.view.try_it import ClassifierPages, TryPages

    models = [RunModel(run) for run in runs]
    classifier = ClassifierPages(classifiers[0]) if classifiers else None
    tabs: list[Tab] = [_examples(folder, models).tab() for folder in data_sets]
    if runs:
        tabs += [CurvePages(runs).tab(), LearningPages(runs).tab()]
    if classifier:
        tabs.append(classifier.tab())
    forms = TryPages(models, classifier)
    actions = {"/fill": forms.fill} if runs else {}
    if classifier:
        actions["/classify"] = classifier.classify
    return Site(title=title, tabs=[*tabs, forms.tab()], actions=actions)


def _examples(folder: AnyPath, models: "Sequence[RunModel]") -> ExamplePages:
    """The Examples pages, with the guesses of the first run, if there is one."""
    if not models:
        return ExamplePages(folder)
    model = models[0]
    pages = ExamplePages(folder, guess=model.guess_rows, checkpoint=model.newest_checkpoint)
    model.check_fits(folder, pages.manifest)
    return pages


def kind_of_folder(folder: AnyPath) -> str:
    """A key of KINDS. Raises InputError for a folder that is none of them."""
    kind = next((kind for kind, name in KINDS.items() if (folder / name).exists()), None)
    if kind is None:
        raise wrong_folder(folder, "a data set, a run or a classifier")
    return kind


def export_report(folders: Sequence[Path], page: AnyPath) -> None:
    """Write the site as one static page.

    Raises InputError as `make_site`, and where `page` cannot be a file.
    """
    make_site(folders).export(page)
