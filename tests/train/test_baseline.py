"""Bag-of-words learns what words tell, from the part of the text that a classifier reads."""

import os
from contextlib import chdir

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, Normalization
from clozeline.train.labelled.baseline import bag_of_words, baseline
from clozeline.train.labelled.rows import Labelled, Texts
from tests.support.command import invoke, output_of

pytest.importorskip("sklearn")

GOOD, BAD = "the food was good", "the food was bad"
WORDS = ["the", "food", "was", "good", "bad", "not", "at", "all"]


def write(path, texts, labels, pairs=None):
    columns = {"text": texts, "label": labels} | ({"more": pairs} if pairs else {})
    pq.write_table(pa.table(columns), path)
    return str(path)


def rows(texts, labels):
    return Labelled(Texts(texts), labels, "somewhere")


def test_two_words_in_a_row_tell_more_than_each():
    texts = ["not good but bad", "not bad but good"] * 20
    assert bag_of_words(*[rows(texts, ["-", "+"] * 20)] * 2, ("-", "+")).accuracy == 1.0


def test_labels_that_follow_no_word_are_not_learned():
    train = rows([GOOD, BAD] * 20, ["+", "+", "-", "-"] * 10)
    assert bag_of_words(train, train, ("-", "+")).accuracy == 0.5


def test_a_telling_word_is_learned_and_words_beyond_the_cut_are_not_read(tmp_path):
    source = write(tmp_path / "x.parquet", [GOOD, BAD] * 20, ["+", "-"] * 20)
    scores = baseline(source, source)
    assert (scores.names, scores.accuracy, scores.examples) == (("+", "-"), 1.0, 40)
    assert baseline(source, source, max_tokens=4).accuracy == 1.0
    assert baseline(source, source, max_tokens=3).accuracy == 0.5
    for truncate in ("start", "middle"):
        assert baseline(source, source, max_tokens=3, truncate=truncate).accuracy == 1.0


def test_with_a_tokenizer_the_cut_is_that_of_a_classifier(tmp_path):
    normalization = Normalization(strip_accents=True, lowercase=True)
    Tokenizer([*SPECIAL_TOKENS, *WORDS], normalization).save(tmp_path / "tokenizer")
    texts = [f"{text} at all" for text in ("the the the " + GOOD, "the the the " + BAD)] * 20
    source = write(tmp_path / "x.parquet", texts, ["+", "-"] * 20)
    folder = tmp_path / "tokenizer"
    assert baseline(source, source, max_tokens=9, tokenizer=folder).accuracy == 1.0
    assert baseline(source, source, max_tokens=8, tokenizer=folder).accuracy == 0.5


def test_both_texts_of_a_pair_are_read(tmp_path):
    labels = ["+", "-"] * 20
    source = write(tmp_path / "x.parquet", ["the food"] * 40, labels, pairs=[GOOD, BAD] * 20)
    assert baseline(source, source).accuracy == 0.5
    assert baseline(source, source, text_pair="more").accuracy == 1.0
    assert baseline(source, source, text_pair="more", max_tokens=5).accuracy == 0.5


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["", "!"], ["a", "b"], r"somewhere: no row has a word .* --no-baseline` does without"),
        ([GOOD, BAD], ["a", "a"], "all have the same class"),
    ],
)
def test_rows_from_which_nothing_can_be_learned_are_an_error_that_says_so(texts, labels, message):
    train = rows(texts, labels)
    with pytest.raises(InputError, match=message):
        bag_of_words(train, train, ("a", "b"))


def test_the_next_command_has_the_columns_of_this_one(tmp_path):
    texts, labels = [GOOD, BAD] * 20, ["+", "-"] * 20
    pq.write_table(pa.table({"review": texts, "stars": labels}), tmp_path / "x.parquet")
    line = ("baseline", "x.parquet", "--test", "x.parquet", "--text", "review", "--label", "stars")
    cut = ("--max-tokens", "3", "--truncate", "start")
    with chdir(tmp_path):
        done = invoke(*line, *cut)
    assert done.exit_code == 0
    assert done.stderr.splitlines()[-1] == (
        "Next: clozeline finetune RUN x.parquet --test x.parquet --text review --label stars "
        "--truncate start --out classifier"
    )
    assert "of --max-tokens; give both" in output_of(*line, "--tokenizer", "nowhere", code=2)
    assert "beyond --max-tokens; give both" in output_of(*line, *cut[2:], code=2)


@pytest.mark.slow
@pytest.mark.skipif("CLOZELINE_DATA" not in os.environ, reason="CLOZELINE_DATA is not set")
def test_amazon_reviews_reach_the_known_accuracy():
    data = os.environ["CLOZELINE_DATA"] + "/amazon_polarity"
    sources = f"{data}/train-*.parquet", f"{data}/test-*.parquet"
    scores = baseline(*sources, text="title", text_pair="content", max_tokens=64)
    assert 0.90 < scores.accuracy < 0.91
