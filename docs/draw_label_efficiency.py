"""Draws docs/manual/label-efficiency.svg: the results of several classifiers in one figure.

python docs/draw_label_efficiency.py work/few work/all --out docs/manual/label-efficiency.svg
"""

import argparse
from pathlib import Path

from clozeline.train.artifacts.classifier_folder import read_report
from clozeline.train.finetuning.label_efficiency import (
    draw_label_efficiency,
    label_efficiency_table,
    points_of,
)
from clozeline.train.finetuning.report import FinetuneReport


def main() -> None:
    """Parse the arguments, write the figure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classifiers", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    reports = [FinetuneReport.from_dict(read_report(folder)) for folder in given.classifiers]
    points = points_of([result for report in reports for result in report.results])
    given.out.write_bytes(draw_label_efficiency(points, kind="svg"))
    print("\n".join(label_efficiency_table(points)))


if __name__ == "__main__":
    main()
