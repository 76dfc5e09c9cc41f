"""What `predict` and `fill` print, and models that they refuse."""

import bz2
import gzip
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import SUMS
from clozeline.train.artifacts.checkpoint import check_finite
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.compare import finetune
from clozeline.train.inference.fill import fill, fill_text, mask_ids, masked_probabilities
from clozeline.train.inference.predict import Prediction, predict
from tests.support.command import invoke, output_of, refused, standard_input
from tests.support.files import times
from tests.support.small_classifier import write_small_classifier
from tests.support.small_runs import one_layer, tokenizer_of, write_small_run

TOKENIZER = tokenizer_of("a", "b")


@pytest.fixture
def classifier(tmp_path):
    return write_small_classifier(tmp_path / "classifier")


def test_all_probabilities_are_printed_or_written_as_json(classifier, tmp_path):
    words = ("predict", classifier, "a cat", "a\tdog")
    lines = output_of(*words, "--json")
    for line, text in zip(lines.splitlines(), ("a cat", "a\tdog"), strict=True):
        found = json.loads(line)
        assert found["text"] == text
        assert sorted(found["probabilities"]) == ["<b>good</b>", "bad"]
        assert sum(found["probabilities"].values()) == pytest.approx(1)
        assert found["probability"] == max(found["probabilities"].values())
        assert found["probability"] == found["probabilities"][found["label"]]


#: Options of `predict`, in a folder with the files of the test below, and the one line.
REFUSED = {
    **{
        (name,): f"there is no file {name}; check its name, and give it as --file."
        for name in ("nosuch.csv", "lost/x.TSV", "*.jsonl", "rows.parquet", "lost.txt", "x.csv.gz")
    },
    ("--file", "a.txt", "--text", "review"): "--text names a column, but no --file is a table; l",
    ("a", "--text-pair", "review"): "--text-pair names a column, but no --file is a table; leave",
    ("a", "--text-pair", ""): "--text or --text-pair is empty; name a column, or leave it out.",
    ("--file", "b.csv", "--text", ""): "--text or --text-pair is empty; name a column, or leave",
    ("--file", "?.*"): "b.csv is a table, and the files of ?.* are read",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_cannot_be_read_or_would_be_lost_is_refused(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.txt").write_text("a cat\n")
    Path("b.csv").write_text("text\na cat\n")
    pair = "second" if "--text-pair" in words else None
    folder = write_small_classifier(tmp_path / "classifier", text_pair=pair)
    before = times(tmp_path)
    assert REFUSED[words] in refused("predict", folder, *words)
    assert times(tmp_path) == before


@pytest.mark.parametrize("text", ["see rows.csv", "N/A", "ok.", "v1.0", "csv", "https://x.org/a"])
def test_words_that_are_not_names_of_files_are_classified(classifier, text):
    assert output_of("predict", classifier, text).endswith(f"\t{text}\n")


def test_columns_are_of_the_tables_and_other_files_are_read_by_line(classifier, tmp_path):
    (tmp_path / "a.txt").write_text("a cat\n")
    (tmp_path / "b.csv").write_text("review\na dog\n")
    words = ("--file", tmp_path / "a.txt", "--file", tmp_path / "b.csv", "--text", "review")
    lines = output_of("predict", classifier, *words).splitlines()
    assert [line.rpartition("\t")[2] for line in lines] == ["a cat", "a dog"]
    assert output_of("predict", classifier, "--file", f"{tmp_path}/*.txt").endswith("\ta cat\n")


def test_a_path_given_as_text_and_a_file_without_a_text_are_named(classifier, tmp_path):
    table, empty = tmp_path / "rows.csv", tmp_path / "empty.txt"
    table.write_text("text\na cat\n")
    empty.touch()
    for words, note in (
        ((table, "a" * 5000), f"note: {table} is classified as a text; --file {table} reads it\n"),
        (("--file", empty), f"note: no text to classify in {empty}\n"),
    ):
        done = invoke("predict", classifier, *words)
        assert (done.exit_code, done.stderr) == (0, note)
        assert bool(done.stdout) == (table in words)


@pytest.mark.parametrize("text", [None, float("nan"), ("a cat", "a dog"), b"a cat"])
def test_only_strings_are_classified(classifier, text):
    """Python's "nan" and "('a cat', 'a dog')" would be classified like any text."""
    with pytest.raises(InputError, match=r"^text 2 is .*, of type .*; give strings, for a "):
        list(predict(classifier, ["a cat", text]))
    with pytest.raises(InputError, match=r"^text 1 is "):
        load_classifier(classifier).classify([text])
    with pytest.raises(InputError, match=r"^text 1 is b'a cat', of type bytes; "):
        list(predict(classifier, b"a cat"))


def test_of_a_table_no_names_of_columns_are_read(classifier):
    """Iterated over, it gives them: the text, or the path, "text"."""
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    for kind in (dict, pa.table, pandas.DataFrame, datasets.Dataset.from_dict):
        table = kind({"text": ["a cat"]})
        with pytest.raises(InputError, match=r"^the texts are a \w+; give one column of it, "):
            list(predict(classifier, table))
        assert [found.text for found in predict(classifier, table["text"])] == ["a cat"]
        for call in (
            lambda given: predict(classifier, files=given),
            lambda given: finetune("run", given, out="out"),
            load_classifier,
        ):
            with pytest.raises(InputError, match=r"^\w+ is not a path; write it to a file, and "):
                call(table)


def test_a_single_text_or_any_row_of_texts_is_classified(classifier):
    single = load_classifier(classifier)
    one = single.classify("a cat")
    assert one.shape == (1, 2)
    for texts in (("a cat", "a cat"), pa.array(["a cat", "a cat"])):
        assert single.classify(texts) == pytest.approx(np.vstack([one, one]))
    assert single.classify([]).shape == (0, 2)
    assert single("a cat") == [dict(zip(single.names, *one, strict=True))]
    assert repr(single) == f"Classifier(names={single.names}, text='text', text_pair=None)"


def test_pairs_and_single_texts_are_not_taken_for_each_other(classifier, tmp_path):
    """A pair without [SEP] would be answered, but the model has never seen one."""
    pairs = load_classifier(write_small_classifier(tmp_path / "pairs", text_pair="second"))
    assert pairs.classify([("a cat", "a dog")]).shape == (1, 2)
    for texts in (["a cat"], "", None, 5, [("a cat", None)]):
        with pytest.raises(InputError, match=r"the classifier reads pairs: give \(first, second\)"):
            pairs.classify(texts)
    with pytest.raises(InputError, match="the texts are a Table; give one column"):
        pairs.classify(pa.table({"text": ["a", "b"], "second": ["c", "d"]}))
    with pytest.raises(InputError, match=r"text 1 is .* of type tuple; give strings"):
        load_classifier(classifier).classify([("a cat", "a dog")])
    with pytest.raises(InputError, match="trained on single texts"):
        predict(classifier, ["a cat"], text_pair="more")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(b"a cat\n" * 50), "- is compressed (twice, if it is packed already), not"),
        (bz2.compress(b"a cat\n" * 50), "- is compressed (twice, if it is packed already), not"),
        (b"a cat\n" + b"caf\xe9 du chat\n" * 30, "- is not in UTF-8 (30 of its first"),
        ("a cat\n".encode("utf-16"), "- is UTF-16; convert it: iconv"),
        (None, "- is closed; pipe text into the command"),  # as after `<&-`
    ],
    ids=["gz", "bz2", "latin-1", "utf-16", "closed"],
)
def test_standard_input_that_is_no_text_in_utf8_is_refused(classifier, data, message, monkeypatch):
    monkeypatch.setattr(sys, "stdin", data and standard_input(data))
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        list(predict(classifier, files=["-"]))


def test_a_character_may_be_cut_where_the_first_part_of_standard_input_ends(
    classifier, monkeypatch
):
    lines = ["a cat", "caf\u00e9" * 2000, "\u6f22" * 9000]
    monkeypatch.setattr(sys, "stdin", standard_input("\n".join(lines).encode()))
    assert [found.text for found in predict(classifier, files=["-"])] == lines


def test_a_class_with_a_tab_does_not_shift_the_columns():
    prediction = Prediction("one\ntext", "a\tclass\n", 0.5, {})
    assert prediction.line() == "a class\t0.5000\tone text"


def test_weights_that_are_not_finite_are_refused(classifier, tmp_path):
    weights = load_file(classifier / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, classifier / "model.safetensors")
    (classifier / SUMS).unlink()
    message = "has weights that are not finite (classifier.bias), so it cannot predict"
    assert message in output_of("predict", classifier, "a", code=2)
    model = BertForPretraining(one_layer(TOKENIZER, positions=8))
    with torch.no_grad():  # finite, but their products are not
        model.encoder.embeddings.word_embeddings.weight.fill_(3e38)
        model.mlm_head.bias.fill_(3e38)
    run = write_small_run(tmp_path / "run", model, TOKENIZER, max_seq_length=8)
    assert "the logits of " in output_of("fill", run, "a [MASK]", code=2)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_number_among_millions_is_found(dtype, value):
    """In the first, a middle and the last place of a matrix that several threads go through."""
    weight = torch.zeros(2048, 1024, dtype=dtype)
    check_finite(Path("folder"), {"weight": weight, "empty": weight[:0]})
    for place in (0, weight.numel() // 2 + 13, weight.numel() - 1):
        spoiled = weight.clone()
        spoiled.view(-1)[place] = value
        with pytest.raises(InputError, match=r"folder has weights that are not finite \(weight\)"):
            check_finite(Path("folder"), {"weight": spoiled})


def test_links_out_of_a_model_folder_are_refused(classifier, tmp_path):
    vocab = classifier / "tokenizer" / "vocab.txt"
    inside = vocab.rename(classifier / "tokenizer" / "real.txt")
    vocab.symlink_to(inside)
    load_classifier(classifier)
    vocab.unlink()
    vocab.symlink_to(inside.rename(tmp_path / "passwd"))
    with pytest.raises(InputError, match=r"vocab\.txt is a link to .*passwd, outside of the model"):
        load_classifier(classifier)
    cached = tmp_path / "snapshots" / "5f2c"
    cached.parent.mkdir()
    load_classifier(classifier.rename(cached))  # as the hub's cache links to its blobs


# --- `clozeline fill` predicts a token for each [MASK] of the user's text -------------------------
WORDS_TO_FILL = tokenizer_of("the", "cat", "##s", "sat", "mask", "[", "]", ".")
MODEL = one_layer(WORDS_TO_FILL, positions=16)

# The probabilities the fixture's model predicts for every mask; other tokens share the rest.
PROBABILITIES = {"cat": 0.6, "##s": 0.3, "sat": 0.05}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose model predicts the same for every mask: only the decoder bias is not zero."""
    model = BertForPretraining(MODEL)
    rest = (1 - sum(PROBABILITIES.values())) / (WORDS_TO_FILL.vocab_size - len(PROBABILITIES))
    probabilities = [PROBABILITIES.get(token, rest) for token in WORDS_TO_FILL.tokens]
    with torch.no_grad():
        model.encoder.embeddings.word_embeddings.weight.zero_()  # tied to the decoder
        assert model.mlm_head.bias is not None
        model.mlm_head.bias.copy_(torch.tensor(probabilities).log())
    folder = tmp_path_factory.mktemp("fill") / "run"
    return write_small_run(folder, model, WORDS_TO_FILL, max_seq_length=12)


def tokens(text):
    return " ".join(
        WORDS_TO_FILL.tokens[i] for i in mask_ids(text, WORDS_TO_FILL, max_seq_length=12)
    )


def test_the_mask_token_is_where_the_user_wrote_it():
    assert tokens("The [MASK] sat.") == "[CLS] the [MASK] sat . [SEP]"
    assert tokens("[MASK]cats[MASK]") == "[CLS] [MASK] cat ##s [MASK] [SEP]"
    assert tokens("[MASK][MASK]") == "[CLS] [MASK] [MASK] [SEP]"
    # Other special tokens remain text.
    assert tokens("[mask] [MASK] [SEP]") == "[CLS] [ mask ] [MASK] [ [UNK] ] [SEP]"


def test_guesses_come_best_first_with_their_probabilities(run):
    (filled,) = fill(run, ["The [MASK] sat. The [MASK]!"], top=WORDS_TO_FILL.vocab_size)
    assert filled.text == "The cat sat. The cat!"
    assert len(filled.guesses) == 2
    for guesses in filled.guesses:
        assert [guess.token for guess in guesses[:3]] == list(PROBABILITIES)
        assert [guess.probability for guess in guesses[:3]] == pytest.approx(
            list(PROBABILITIES.values())
        )
        assert math.fsum(guess.probability for guess in guesses) == pytest.approx(1)


def test_each_mask_is_predicted_at_its_own_position():
    model = BertForPretraining(MODEL, seed=3).eval()
    ids = mask_ids("the [MASK] sat [MASK]", WORDS_TO_FILL, max_seq_length=12)
    found = masked_probabilities(model, ids, WORDS_TO_FILL.mask_id)
    batch = torch.tensor([ids]), torch.zeros(1, len(ids), dtype=torch.int64), None
    for row, position in enumerate((2, 4)):
        logits, _ = model(*batch, torch.tensor([[position]]))
        torch.testing.assert_close(found[row], logits[0, 0].softmax(-1)[: WORDS_TO_FILL.vocab_size])
    assert not torch.allclose(found[0], found[1])


def test_tokens_are_filled_into_the_text():
    filled = fill_text("The [MASK] of [MASK] [MASK].", [" king", " fran", "ce"])
    assert filled == "The king of france."
    assert fill_text("[MASK]", ["s"]) == "s"


@pytest.mark.parametrize(
    ("text", "top", "message"),
    [
        ("the cat", 5, r"no \[MASK\] in 'the cat'; write \[MASK\] where"),
        ("the [mask]", 5, r"no \[MASK\]"),
        ("the " * 10 + "[MASK]", 5, "the text has 13 tokens .* reads at most 12"),
        ("[MASK]", 0, "top is 0; it must be between 1 and 13"),
        ("[MASK]", 14, "top is 14"),
    ],
)
def test_bad_input_is_one_clear_error(run, text, top, message):
    with pytest.raises(InputError, match=message):
        fill(run, [text], top=top)
