"""What `predict` and `fill` print, and models that they refuse."""

import bz2
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.checksums import SUMS
from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.checkpoint import check_finite
from clozeline.train.artifacts.pretrained import load_pretrained
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.finetune import finetune
from clozeline.train.inference.fill import fill_with
from clozeline.train.inference.predict import Prediction, predict
from clozeline.train.labelled.rows import Texts
from tests.support.command import invoke, output_of, refused, standard_input
from tests.support.small_classifier import write_small_classifier
from tests.support.small_runs import one_layer, tokenizer_of, write_small_run

TOKENIZER = tokenizer_of("a", "b")


@pytest.fixture
def classifier(tmp_path):
    return write_small_classifier(tmp_path / "classifier")


def test_all_probabilities_are_printed_or_written_as_json(classifier, tmp_path):
    words = ("predict", classifier, "a cat", "a\tdog")
    lines = output_of(*words, "--json")
    assert output_of(*words, "--out", tmp_path / "x.jsonl") == f"predictions: {tmp_path}/x.jsonl\n"
    assert (tmp_path / "x.jsonl").read_text() == lines
    for line, text in zip(lines.splitlines(), ("a cat", "a\tdog"), strict=True):
        found = json.loads(line)
        assert found["text"] == text
        assert sorted(found["probabilities"]) == ["<b>good</b>", "bad"]
        assert sum(found["probabilities"].values()) == pytest.approx(1)
        assert found["probability"] == max(found["probabilities"].values())
        assert found["probability"] == found["probabilities"][found["label"]]


def test_only_its_own_file_is_replaced(classifier, tmp_path):
    out = tmp_path / "x.jsonl"
    words = ("predict", classifier, "a cat", "--out", out)
    for _ in range(2):
        output_of(*words)
    (link := tmp_path / "link.jsonl").symlink_to(out)
    output_of("predict", classifier, "a dog", "--out", link)
    assert link.is_symlink()
    assert json.loads(out.read_text())["text"] == "a dog"
    rows = '{"text": "a cat", "label": "good"}\n'
    out.write_text(rows)
    assert refused(*words) == f"{out} exists and has no predictions in it; give another --out."
    assert out.read_text() == rows
    os.mkfifo(pipe := tmp_path / "pipe")
    assert refused(*words[:-1], pipe).startswith(f"{pipe} is not a file, and would be replaced")
    assert pipe.is_fifo()
    pipe.unlink()
    pipe.symlink_to(pipe)
    assert refused(*words[:-1], pipe).startswith(f"{pipe} is not a file, and would be replaced")
    for name in ("/dev/null", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
        assert refused(*words[:-1], name).startswith(f"{name} is not a file")
    lost = tmp_path / "lost" / "x.jsonl"
    assert refused(*words[:-1], lost).startswith(f"--out {lost}: there is no folder {lost.parent}")


def test_a_path_given_as_text_is_named(classifier, tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("text\na cat\n")
    done = invoke("predict", classifier, table, "a" * 5000)
    note = f"note: {table} is classified as a text; --file {table} reads it\n"
    assert (done.exit_code, done.stderr) == (0, note)


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


def test_an_unknown_engine_is_named(classifier):
    with pytest.raises(ValueError, match=r"^engine is 'tf'; it must be one of torch, onnx\.$"):
        predict(classifier, "a cat", engine="tf")


@pytest.mark.parametrize("name", ["x.csv", "x.TSV", "x.parquet"])
def test_json_lines_are_not_called_a_table(classifier, tmp_path, name):
    message = refused("predict", classifier, "a cat", "--out", tmp_path / name)
    assert "predictions are JSON lines" in message
    assert not (tmp_path / name).exists()


def test_a_column_of_no_table_is_refused(classifier, tmp_path):
    (tmp_path / "lines.txt").write_text("a cat\n")
    words = ("predict", classifier, "a cat", "--file", tmp_path / "lines.txt", "--text", "review")
    assert refused(*words) == "--text names a column, but no --file is a table; leave it out."
    (tmp_path / "rows.csv").write_text("review\na dog\n")
    assert len(output_of(*words, "--file", tmp_path / "rows.csv").splitlines()) == 3


def test_a_second_column_of_no_table_and_an_empty_name_are_refused(classifier, tmp_path):
    pairs = write_small_classifier(tmp_path / "pairs", text_pair="second")
    words = ("predict", pairs, "a cat\ta dog", "--text-pair")
    assert refused(*words, "review") == (
        "--text-pair names a column, but no --file is a table; leave it out."
    )
    assert len(output_of(*words, "second").splitlines()) == 1  # as in training
    empty = "--text or --text-pair is empty; name a column, or leave it out."
    assert refused(*words, "") == empty
    (tmp_path / "rows.csv").write_text("text\na dog\n")
    assert refused("predict", classifier, "--file", tmp_path / "rows.csv", "--text", "") == empty


def test_pairs_and_single_texts_are_not_taken_for_each_other(classifier, tmp_path):
    """A pair without [SEP] would be answered, but the model has never seen one."""
    pairs = load_classifier(write_small_classifier(tmp_path / "pairs", text_pair="second"))
    assert pairs.classify(Texts(["a cat"], ["a dog"])).shape == (1, 2)
    with pytest.raises(InputError, match=r"the classifier reads pairs: give Texts\(first, sec"):
        pairs.classify(["a cat"])
    with pytest.raises(InputError, match="the classifier reads single texts"):
        load_classifier(classifier).classify(Texts(["a cat"], ["a dog"]))


def test_a_file_without_a_text_is_named(classifier, tmp_path):
    file, out = tmp_path / "empty.txt", tmp_path / "out.jsonl"
    file.write_text("")
    done = invoke("predict", classifier, "--file", file, "--out", out)
    assert (done.exit_code, done.stderr) == (0, f"note: no text to classify in {file}\n")
    assert out.read_text() == ""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzip.compress(b"a cat\n" * 50), "- is compressed (gz); unpack it first, or name the file"),
        (bz2.compress(b"a cat\n" * 50), "- is compressed (bz2); unpack it first"),
        (b"a cat\n" + b"caf\xe9 du chat\n" * 30, "- is not in UTF-8 (30 of its first"),
    ],
    ids=["gz", "bz2", "latin-1"],
)
def test_standard_input_that_is_no_text_in_utf8_is_refused(classifier, data, message, monkeypatch):
    monkeypatch.setattr(sys, "stdin", standard_input(data))
    with pytest.raises(InputError, match=f"^{re.escape(message)}"):
        list(predict(classifier, files=["-"]))


def test_standard_input_that_is_closed_is_one_line(classifier, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as Python has it after `<&-`
    with pytest.raises(InputError, match="- is closed; pipe text into the command"):
        list(predict(classifier, files=["-"]))


def test_a_pipe_with_a_name_is_called_one(classifier, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    said = refused("predict", classifier, "--file", pipe)
    assert said == f"{pipe} is a pipe or a device; send it to standard input, with --file -."


def test_tables_among_the_files_of_a_glob_are_not_read_by_line(classifier, tmp_path):
    (tmp_path / "a.txt").write_text("a cat\n")
    assert output_of("predict", classifier, "--file", f"{tmp_path}/*").endswith("\ta cat\n")
    (tmp_path / "b.csv").write_text("text\na cat\n")
    said = refused("predict", classifier, "--file", f"{tmp_path}/*")
    assert said.startswith(f"{tmp_path}/b.csv is a table, and the files of {tmp_path}/* are read")
    assert output_of("predict", classifier, "--file", f"{tmp_path}/*.csv").endswith("\ta cat\n")


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
    message = "has weights that are not finite (classifier.bias), so it answers nothing"
    assert message in output_of("predict", classifier, "a", code=2)
    model = BertForPretraining(one_layer(TOKENIZER, positions=8))
    run = write_small_run(tmp_path / "run", model, TOKENIZER, max_seq_length=8)
    pretrained = load_pretrained(run)
    with torch.no_grad():
        model.mlm_head.bias.fill_(float("inf"))
    with pytest.raises(InputError, match=r"the logits of .*run are not finite"):
        fill_with(pretrained, model, "a [MASK]", top=1, name=run)


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


@pytest.mark.slow
def test_an_error_right_after_a_table_ends_with_2_every_time(tmp_path):
    """A thread of Arrow that still held a Python stream aborted one such process in five."""
    folder = write_small_classifier(tmp_path / "pairs", text_pair="second")
    (tmp_path / "x.csv").write_text("text,label\na cat,1\n" * 5)
    line = [sys.executable, "-m", "clozeline", "predict", str(folder), "--file"]
    codes = [
        subprocess.run([*line, str(tmp_path / "x.csv")], capture_output=True).returncode
        for _ in range(30)
    ]
    assert codes == [2] * 30
