"""Bag-of-words learns what words tell, from the part of the text that a classifier reads."""

import os
from contextlib import chdir

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.train.labelled.baseline import baseline, fit_bag_of_words
from tests.support.command import invoke

pytest.importorskip("sklearn")

GOOD, BAD = "the food was good", "the food was bad"


def write(path, texts, labels, pairs=None):
    columns = {"text": texts, "label": labels} | ({"more": pairs} if pairs else {})
    pq.write_table(pa.table(columns), path)
    return str(path)


@pytest.mark.parametrize(
    ("texts", "labels", "accuracy"),
    [
        ([GOOD, BAD], ["+", "-"], 1.0),
        (["not good but bad", "not bad but good"], ["-", "+"], 1.0),  # two words in a row tell
        ([GOOD, BAD, GOOD, BAD], ["+", "+", "-", "-"], 0.5),  # no word does
    ],
)
def test_what_words_tell_is_learned(texts, labels, accuracy, tmp_path):
    source = write(tmp_path / "x.parquet", texts * 20, labels * 20)
    scores = baseline(source, source)
    assert (scores.names, scores.accuracy) == (("+", "-"), accuracy)
    assert scores.examples == 20 * len(texts)


def test_both_texts_of_a_pair_are_read(tmp_path):
    labels = ["+", "-"] * 20
    source = write(tmp_path / "x.parquet", ["the food"] * 40, labels, pairs=[GOOD, BAD] * 20)
    assert baseline(source, source).accuracy == 0.5
    assert baseline(source, source, text_pair="more").accuracy == 1.0


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["", "!"], ["a", "b"], r"somewhere: no row has a word .* --no-baseline` does without"),
        ([GOOD, BAD], ["a", "a"], "all have the same class"),
    ],
)
def test_rows_from_which_nothing_can_be_learned_are_an_error_that_says_so(texts, labels, message):
    classes = np.unique(labels, return_inverse=True)[1]
    with pytest.raises(InputError, match=message):
        fit_bag_of_words(texts, classes, source="somewhere")


def test_the_next_command_has_the_columns_of_this_one(tmp_path):
    texts, labels = [GOOD, BAD] * 20, ["+", "-"] * 20
    pq.write_table(pa.table({"review": texts, "stars": labels}), tmp_path / "x.parquet")
    line = ("baseline", "x.parquet", "--test", "x.parquet", "--text", "review", "--label", "stars")
    with chdir(tmp_path):
        done = invoke(*line)
    assert done.exit_code == 0
    assert done.stderr.splitlines()[-1] == (
        "Next: clozeline finetune RUN x.parquet --test x.parquet --text review --label stars "
        "--out classifier"
    )


@pytest.mark.slow
@pytest.mark.skipif("CLOZELINE_DATA" not in os.environ, reason="CLOZELINE_DATA is not set")
def test_amazon_reviews_reach_the_known_accuracy():
    data = os.environ["CLOZELINE_DATA"] + "/amazon_polarity"
    sources = f"{data}/train-*.parquet", f"{data}/test-*.parquet"
    scores = baseline(*sources, text="title", text_pair="content")
    assert 0.92 < scores.accuracy < 0.94
