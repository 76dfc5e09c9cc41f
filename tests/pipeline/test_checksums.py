"""Classifiers and exports are what was written, or they are refused by the name of a file."""

import hashlib
import shutil
from dataclasses import replace

import numpy as np
import pytest

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.checksums import SUMS, check_sums, write_sums
from clozeline.pipeline.common.errors import DivergedError, InputError
from clozeline.train.artifacts.huggingface import load_model
from clozeline.train.export.export import export
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.finetune import finetune
from clozeline.train.finetuning.hyperparameters import HeldOut
from tests.pipeline.test_folder_owner import QUICK, write_rows
from tests.support.small import small_tokenizer
from tests.support.small_classifier import write_small_classifier
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return write_small_run(folder, BertForPretraining(TINY), small_tokenizer(), max_seq_length=16)


@pytest.fixture(scope="module")
def sealed(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("sealed")
    write_small_classifier(folder / "classifier")
    (folder / "classifier" / "predictions.csv").unlink()  # of test rows; not part of the model
    export(run, out=folder / "export")
    return folder


LOADERS = {"classifier": load_classifier, "export": load_model}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_file_has_the_sum_that_is_listed(kind, sealed):
    lines = (sealed / kind / SUMS).read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {path for path in (sealed / kind).rglob("*") if path.is_file()}
    found = {str(path.relative_to(sealed / kind)): path.read_bytes() for path in files}
    del found[SUMS]
    found.pop("README.md", None)  # a model card is there to be edited
    assert {name: hashlib.sha256(data).hexdigest() for name, data in found.items()} == sums


@pytest.mark.parametrize("kind", LOADERS)
def test_a_wrong_byte_in_any_file_is_refused_by_its_name(kind, sealed, tmp_path):
    out = shutil.copytree(sealed / kind, tmp_path / "out")
    LOADERS[kind](out)
    rng = np.random.default_rng(0)
    for path in sorted(path for path in out.rglob("*") if path.is_file()):
        if path.name == "README.md":
            continue
        whole = path.read_bytes()
        for at in rng.integers(0, len(whole), 5):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 7)]) + whole[at + 1 :])
            with pytest.raises(InputError, match=f"{out}"):
                LOADERS[kind](out)
        path.write_bytes(whole)
    LOADERS[kind](out)


@pytest.mark.parametrize("kind", LOADERS)
def test_a_folder_of_an_earlier_version_is_read(kind, sealed, tmp_path):
    out = shutil.copytree(sealed / kind, tmp_path / "out")
    (out / SUMS).unlink()
    LOADERS[kind](out)


def test_a_missing_file_and_a_damaged_list_are_named(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    write_sums(tmp_path, ["a", "b", "missing"])
    check_sums(tmp_path)
    (tmp_path / "a").unlink()
    with pytest.raises(InputError, match=r"a cannot be read \(No such file"):
        check_sums(tmp_path)
    check_sums(tmp_path, ["b"])
    for damaged in (b"\xff" * 100, b"0" * 64 + b"  a\0b\n"):
        (tmp_path / SUMS).write_bytes(damaged)
        with pytest.raises(InputError, match=r"SHA256SUMS cannot be read \(it is damaged\)"):
            check_sums(tmp_path)


def test_a_diverged_fine_tuning_leaves_no_classifier(run, tmp_path):
    rows = write_rows(tmp_path / "rows.parquet")
    wild = replace(QUICK, learning_rate=1e30)
    with pytest.raises(DivergedError, match=r"diverged at a learning rate of 1e\+30: .* smaller"):
        finetune(run, rows, out=tmp_path / "out", config=wild)
    assert not (tmp_path / "out").exists()


def test_a_diverged_candidate_is_the_worst():
    logits, labels = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    finite, diverged = HeldOut.of(logits, labels), HeldOut.of(logits * np.nan, labels)
    assert finite.loss < diverged.loss
    assert diverged.loss == np.finfo(float).max  # JSON has no infinity
