"""The report of a classifier: what is printed, stored and drawn of finished results."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from clozeline.pipeline.report.html import make_sections
from clozeline.train.finetuning.label_efficiency import label_efficiency_table
from clozeline.train.finetuning.report import FinetuneReport
from clozeline.train.labelled.predictions import PREDICTIONS
from clozeline.train.labelled.scores import Scores
from clozeline.train.view.classifier_sections import SECTIONS, ClassifierSummary
from clozeline.train.view.view import make_site
from tests.support.command import invoke, refused
from tests.support.small_classifier import PREDICTED, report

pytest.importorskip("matplotlib")
pytest.importorskip("jinja2")


def write_folder(folder, found):
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(found.to_dict()))
    (folder / PREDICTIONS).write_text(PREDICTED.csv())
    metadata = {"model": {}, "names": [], "max_seq_length": 8, "job": {"epochs": "auto"}}
    metadata |= {"pooling": "mean", "temperature": 1.0, "text": "text", "text_pair": None}
    metadata |= {"tokenizer_digest": "0" * 64, "truncate": "end", "prompt": None}
    metadata |= {"mask_position": 0}
    (folder / "classifier.json").write_text(json.dumps(metadata))
    return folder


def test_the_report_is_that_of_the_chosen_seed_and_means_are_over_all():
    found = report()
    assert found.finetuned.scores.accuracy == 0.84
    assert found.rows == 1000
    values = found.to_dict()
    assert values["seed"] == 1
    assert values["finetuned"]["accuracy"] == 0.84
    assert values["from_scratch"]["accuracy"] == 0.60  # of the first seed
    assert values["bag_of_words"]["accuracy"] == 0.70
    assert values["plan"] == {"learning_rate": 1e-3, "epochs": 6}
    assert [(p.start, p.examples) for p in found.points()] == [
        (start, n) for n in (100, 1000) for start in ("pretrained", "from_scratch", "bag_of_words")
    ]
    point = found.points()[3]
    assert (point.mean(), point.deviation()) == pytest.approx((0.82, 0.04 / 2**0.5))
    assert point.mean("imdb") == pytest.approx(0.81)


def test_the_report_survives_json():
    found = report()
    again = FinetuneReport.from_dict(json.loads(json.dumps(found.to_dict())))
    assert not again.is_new
    assert again.to_dict() == found.to_dict()
    assert again.lines() == found.lines()


def test_the_table_has_mean_and_deviation_in_percent():
    assert label_efficiency_table(report().points()) == [
        "",
        "accuracy, %",
        "      rows      fine-tuned    from scratch    bag-of-words",
        "       100      82.0 ± 2.8      61.0 ± 1.4            70.0",
        "     1,000      82.0 ± 2.8      61.0 ± 1.4            70.0",
        "",
        "accuracy on imdb, %",
        "      rows      fine-tuned    from scratch    bag-of-words",
        "       100      81.0 ± 2.8      60.0 ± 1.4            69.0",
        "     1,000      81.0 ± 2.8      60.0 ± 1.4            69.0",
    ]
    of_one_size = report((1000,))  # there is no curve
    assert label_efficiency_table(of_one_size.points()) == []
    assert of_one_size.figures() == {}


def test_the_lines_say_what_was_chosen_and_measured():
    lines = report().lines()
    for expected in (
        "          fine-tuned  accuracy 0.8200 ± 0.0283 (2 seeds), 0.8100 on imdb",
        "        bag-of-words  accuracy 0.7000, 0.6900 on imdb",
        "chosen on training rows: learning rate 0.001, 6 epochs, 0.8000 on 200 held-out "
        "training rows",
        "note: something to know",
    ):
        assert expected in lines


def test_the_page_has_every_section_and_escapes_texts(tmp_path):
    folder = write_folder(tmp_path / "c", report())
    make_site([folder]).export(tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", html) == [
        *("Classes", "Confusion matrix", "Compared models", "Label efficiency", "Thresholds"),
        *("Calibration", "Learning rate and epochs", "Config"),
    ]
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert html.count("<svg") == 6  # two test sets, calibration, thresholds


def test_the_command_reports_on_a_classifier_of_a_single_size_without_a_curve(tmp_path):
    folder = write_folder(tmp_path / "c", report((1000,)))
    done = invoke("report", folder)
    assert (done.exit_code, done.stdout) == (0, f"{folder / 'report.html'}\n")
    html = (folder / "report.html").read_text()
    assert "Label efficiency" not in html
    assert html.count("<svg") == 4


def sections(found, predictions=PREDICTED):
    """The sections of the page by heading."""
    summary = ClassifierSummary(report=found, job={}, predictions=predictions)
    return {section.heading: section for section in make_sections(SECTIONS, summary)}


def test_of_many_classes_the_most_frequent_confusions_are_shown():
    names = tuple(f"class {i}" for i in range(40))
    confusion = 9 * np.eye(40, dtype=np.int64)
    confusion[3, 5], confusion[39, 0] = 4, 1200
    found = report((1000,))
    results = [replace(result, scores=Scores(names, confusion)) for result in found.results]
    [table] = sections(replace(found, results=tuple(results)))["Confusion matrix"].tables
    assert table.heads == ("label", "predicted", "rows")
    assert table.rows == [("class 39", "class 0", "1,200"), ("class 3", "class 5", "4")]


def test_a_long_name_of_a_class_leaves_room_for_the_curve_and_its_number():
    long = replace(PREDICTED, names=("bad", "good " * 40))
    charts = sections(report((1000,)), long)["Thresholds"].charts
    [label] = re.findall(r">(\d\.\d{4} good [^<]*)</text>", charts[0].svg)
    assert len(label) == 24


def test_the_path_of_another_test_set_is_beside_its_chart_and_not_on_an_axis():
    found, source = report(), "reviews/2025/" * 5 + "test-*.parquet?text=title,content"
    results = [replace(result, also={source: result.also["imdb"]}) for result in found.results]
    charts = sections(replace(found, results=tuple(results)))["Label efficiency"].charts
    assert [chart.caption for chart in charts] == [
        "accuracy on the test rows",
        f"accuracy on {source}",
    ]
    assert not any("reviews/2025/" in chart.svg for chart in charts)


def test_a_temperature_that_was_not_fitted_is_not_named():
    found = report((1000,))
    fitted = sections(found)["Calibration"].sentence
    assert "without the temperature of 1.50 it would be " in fitted
    plain = replace(found, calibration=replace(found.calibration, temperature=1.0))
    said = "; no temperature was fitted that is sure to lower it."
    assert sections(plain)["Calibration"].sentence.endswith(said)


@pytest.mark.parametrize("rows", [0, 99])
def test_predictions_of_another_number_of_rows_are_refused(rows, tmp_path):
    folder = write_folder(tmp_path / "c", report())
    (folder / PREDICTIONS).write_text(PREDICTED.csv(range(rows)))
    said = f"{folder / PREDICTIONS} has {rows} rows, but 100 test rows are in the report; restore"
    assert refused("report", folder).startswith(said)
