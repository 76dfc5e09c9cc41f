"""Draws docs/manual/label-efficiency.svg: the results of several classifiers in one figure.

python docs/draw_label_efficiency.py work/few work/all --out docs/manual/label-efficiency.svg
"""

import argparse
from pathlib import Path

from clozeline.train.artifacts.classifier_folder import read_report
from clozeline.train.finetuning.label_efficiency import draw_label_efficiency, points_of
from clozeline.train.finetuning.report import FinetuneReport


def main() -> None:
    """Parse the arguments, write the figure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classifiers", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    reports = [FinetuneReport.from_dict(read_report(folder)) for folder in given.classifiers]
    results = {result.key: result for report in reports for result in report.results}
    points = points_of(list(results.values()))
    given.out.write_bytes(draw_label_efficiency(points, kind="svg"))
    for point in points:
        print(f"{point.examples:>7,} {point.start:>13} {100 * point.mean():5.1f}")


if __name__ == "__main__":
    main()
