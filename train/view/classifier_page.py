"""The Classifier page: what a classifier scored on its test rows."""

from functools import cached_property
from pathlib import Path
from typing import Any

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.packages import check_packages
from clozeline.pipeline.report.html import make_sections
from clozeline.pipeline.view.site import Tab
from clozeline.train.artifacts.classifier_folder import read_metadata, read_report
from clozeline.train.finetuning.report import FinetuneReport
from clozeline.train.labelled.predictions import PREDICTIONS, Predictions
from clozeline.train.view.classifier_sections import SECTIONS, ClassifierSummary, results


class ClassifierPages:
    """One classifier: its report. Raises InputError if the folder is not one."""

    def __init__(self, folder: Path) -> None:
        check_packages("a report", "matplotlib")
        self._report = FinetuneReport(read_report(folder))
        self.metadata = read_metadata(folder)
        self.predictions = Predictions.read(folder / PREDICTIONS)
        rows, tested = len(self.predictions.texts), self._report.finetuned.scores.examples
        if rows != tested:
            raise InputError(
                f"{folder / PREDICTIONS} has {rows:,} rows, but {tested:,} test rows are in the "
                "report; restore it, or make it again with `clozeline finetune`."
            )

    def tab(self) -> Tab:
        template = "clozeline.pipeline.view/sections.html.jinja"
        return Tab(
            name="Classifier",
            path="/classifier",
            template=template,
            values=lambda _: self._page,
        )

    @cached_property
    def _page(self) -> dict[str, Any]:
        summary = ClassifierSummary(
            report=self._report, job=self.metadata["job"], predictions=self.predictions
        )
        return {
            "figures": list(results(self._report)),
            "sections": make_sections(SECTIONS, summary),
        }
