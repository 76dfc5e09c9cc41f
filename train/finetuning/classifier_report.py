"""`clozeline report CLASSIFIER`: a page about a fine-tuned classifier.

CLASSIFIER/report.html    tables and charts from report.json and classifier.json
"""

from pathlib import Path

from pipeline.report.html import REPORT, Page, check_report, make_sections, write_page
from train.artifacts.classifier_folder import read_metadata, read_report
from train.finetuning.report import FinetuneReport
from train.finetuning.sections import SECTIONS, ClassifierSummary, results


def write_classifier_report(folder: Path, *, out: Path | None) -> Path:
    """Write the page to `out`, or into the classifier's folder; return its path.

    Raises InputError if the folder is not a classifier, `out` cannot be a file, or a library is
    missing.
    """
    check_report(out)
    report = FinetuneReport.from_dict(read_report(folder))
    summary = ClassifierSummary(report=report, job=read_metadata(folder)["job"])
    path = out or folder / REPORT
    page = Page(
        title=f"Classifier: {folder.resolve().name}",
        figures=list(results(report)),
        sections=make_sections(SECTIONS, summary),
    )
    write_page(path, page)
    return path
