"""A command writes only into a folder of its own kind, whole or not at all, with sums."""

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import DivergedError, InputError
from clozeline.pipeline.common.folder_lock import LOCK, locked_folder
from clozeline.pipeline.common.json_files import SUMS, check_sums, write_sums
from clozeline.pipeline.tokenization.train_tokenizer import make_tokenizer
from clozeline.train.artifacts.checkpoint import DAMAGED, list_checkpoints
from clozeline.train.artifacts.huggingface import load_model
from clozeline.train.artifacts.partial_folder import partial_folder, replace_folder
from clozeline.train.artifacts.pretrained import load_pretrained
from clozeline.train.export.export import export
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.finetuning.compare import finetune
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.pretraining.pretrain import pretrain
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import TEXT
from tests.support.files import contents
from tests.support.small import small_tokenizer
from tests.support.small_classifier import write_small_classifier
from tests.support.small_jobs import python
from tests.support.small_runs import write_small_run
from tests.support.small_training import SHORT, TINY, train

QUICK = FinetuneConfig(
    learning_rate=1e-3, baseline=False, epochs=1, batch_size=16, label="label", text="text"
)


@pytest.fixture(scope="module")
def folders(small_folder, tmp_path_factory):
    """A folder of every kind, and of somebody else's."""
    folder = tmp_path_factory.mktemp("kinds")
    shutil.copytree(small_folder, folder / "a data set")
    model = BertForPretraining(TINY)
    write_small_run(folder / "a run", model, small_tokenizer(), max_seq_length=16)
    export(folder / "a run", out=folder / "an export")
    small_tokenizer().save(folder / "a tokenizer")
    write_small_classifier(folder / "a classifier")
    (folder / "corpus.txt").write_text(TEXT)
    (folder / "a thesis").mkdir()
    (folder / "a thesis" / "thesis.tex").write_text("years of work")
    rows = {"text": ["w1 w2", "w3 w4"] * 20, "label": [0, 1] * 20}
    pq.write_table(pa.table(rows), folder / "rows.parquet")
    return folder


def run_shards(folders, out, overwrite):
    shards(out.parent, options=replace(OPTIONS, overwrite=overwrite), out=out)


def run_pretrain(folders, out, overwrite):
    train(folders / "a data set", out, overwrite=overwrite, max_steps=4)


def run_finetune(folders, out, overwrite):
    source = str(folders / "rows.parquet")
    finetune(folders / "a run", source, out=out, config=QUICK, overwrite=overwrite)


def run_export(folders, out, overwrite):
    export(folders / "a run", out=out, overwrite=overwrite)


def run_tokenizer(folders, out, overwrite):
    text = str(folders / "corpus.txt")  # for Punkt, where nltk has no parameters
    vocab = folders / "a tokenizer" / "vocab.txt"
    make_tokenizer(text, out=out, vocab=vocab, overwrite=overwrite)


COMMANDS = {
    "a data set": run_shards,
    "a run": run_pretrain,
    "a classifier": run_finetune,
    "an export": run_export,
    "a tokenizer": run_tokenizer,
}
KINDS = (*COMMANDS, "a thesis")


@pytest.mark.parametrize(
    ("own", "kind"), [(own, kind) for own in COMMANDS for kind in KINDS if kind != own]
)
def test_a_folder_of_another_kind_is_refused_and_stays_as_it_is(own, kind, folders, tmp_path):
    out = shutil.copytree(folders / kind, tmp_path / "out")
    before = contents(out)
    for overwrite in (False, True):
        with pytest.raises(InputError, match=rf"out is not empty and not {own} \(.*another folder"):
            COMMANDS[own](folders, out, overwrite)
        assert contents(out) == before


@pytest.mark.parametrize("own", ["a classifier", "an export"])
def test_a_folder_that_is_replaced_as_a_whole_holds_nothing_else(own, folders, tmp_path):
    out = shutil.copytree(folders / own, tmp_path / "out")
    for name in ("thesis.tex", "tokenizer/notes.txt", ".git"):
        path = out / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("years of work")
        with pytest.raises(InputError, match=rf"not part of {own} \({path.relative_to(out)}\)"):
            COMMANDS[own](folders, out, True)
        assert path.read_text() == "years of work"
        path.unlink()
    (out / "link").symlink_to(out / "nothing")  # counts as a file
    with pytest.raises(InputError, match=rf"not part of {own} \(link\)"):
        COMMANDS[own](folders, out, True)


def test_overwrite_removes_the_files_of_a_run_and_nothing_else(folders, tmp_path):
    out = tmp_path / "out"
    run_pretrain(folders, out, False)
    mine = [out / name for name in ("a.txt", "tokenizer/a.txt", "tensorboard/a", "checkpoints/a")]
    for path in mine:
        path.write_text("mine")
    damaged = list_checkpoints(out)[0]
    damaged.rename(damaged.with_name(DAMAGED + damaged.name))
    with pytest.raises(InputError, match="tokenizer is not a tokenizer folder"):
        run_pretrain(folders, out, True)
    assert [path.read_text() for path in mine] == ["mine"] * 4
    assert not list((out / "checkpoints").glob("*step-*"))


def test_overwrite_removes_the_files_of_a_tokenizer_and_nothing_else(folders, tmp_path):
    out = shutil.copytree(folders / "a tokenizer", tmp_path / "out")
    (out / ".hidden").write_text("mine")
    run_tokenizer(folders, out, True)
    assert (out / ".hidden").read_text() == "mine"
    (out / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="is not empty and not a tokenizer"):
        run_tokenizer(folders, out, True)
    assert (out / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("own", ["a data set", "a run", "a classifier", "an export"])
def test_a_linked_folder_is_followed_before_the_work(own, folders, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    for overwrite in (False, True):
        COMMANDS[own](folders, tmp_path / "out", overwrite)
    assert (tmp_path / "out").is_symlink()
    of_shards = {"corpus.txt", "tokenizer"}
    assert {path.name for path in tmp_path.iterdir()} - of_shards == {"disk", "out"}
    assert len(list((tmp_path / "disk").iterdir())) > 2


@pytest.mark.parametrize("own", COMMANDS)
def test_a_folder_in_use_is_refused(own, folders, tmp_path):
    in_use = pytest.raises(InputError, match=r"out is in use by process \d+ on .+ since ")
    with locked_folder(tmp_path / "out"), in_use:
        COMMANDS[own](folders, tmp_path / "out", False)


def test_the_lock_follows_a_folder_that_is_replaced(tmp_path):
    out = tmp_path / "out"
    with locked_folder(out):
        write_small_classifier(out)
        with pytest.raises(InputError, match="is in use"), locked_folder(out):
            pass
    assert not (out / LOCK).exists()
    assert (out / "classifier.json").exists()


def test_a_refused_command_leaves_no_folder(folders, tmp_path):
    out = tmp_path / "new" / "out"
    with pytest.raises(InputError):
        pretrain(folders / "a data set", out=out, model=TINY, training=SHORT, from_=tmp_path)
    assert not out.exists()


# A folder that is replaced is the old one or the new one, at whatever instant the writer dies

#: Replaces a folder again and again. The N-th process is killed at its N-th event: whatever opens
#: (to write or to sync), renames or removes a file. Prints what a reader finds after each.
KILLS = """
import os, signal, sys
from itertools import count
from pathlib import Path
from clozeline.train.artifacts.partial_folder import partial_folder, replace_folder, restore_folder

EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")
out = Path(sys.argv[1], "out")

def write(seed):
    with partial_folder(out) as partial:
        (partial / "deep").mkdir()
        for name in ("a", "deep/b"):
            (partial / name).write_text(str(seed))
        replace_folder(partial, out)

def read():
    restore_folder(out)
    names = sorted(str(path.relative_to(out)) for path in out.rglob("*"))
    return " ".join([*names, (out / "a").read_text(), (out / "deep" / "b").read_text()])

def die_at(number):
    seen = 0
    def kill(event, arguments):
        nonlocal seen
        if event in EVENTS:
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)  # raises an event, too, which is not counted
    sys.addaudithook(kill)

status = None
for number in count(1):
    write(1)
    assert os.listdir(out.parent) == [out.name], "something was left"
    if status == 0:
        break
    child = os.fork()
    if not child:
        die_at(number)
        write(2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status), read())
"""


def test_killed_at_any_instant_the_old_or_the_new_folder_is_there(tmp_path):
    *killed, last = python("-c", KILLS, tmp_path).splitlines()
    old, new = "9 a deep deep/b 1 1", "9 a deep deep/b 2 2"
    assert last == "0 a deep deep/b 2 2"
    assert {*killed} == {old, new}
    assert killed == sorted(killed), "once it is new, it stays new"
    assert killed.count(old) > 8


@pytest.mark.parametrize(
    ("own", "read"), [("a classifier", load_classifier), ("an export", load_pretrained)]
)
def test_killed_at_a_rename_readers_find_the_old_folder(own, read, folders, tmp_path, monkeypatch):
    """What a kill leaves is copied before each rename; the new folder comes with the last one."""
    out = shutil.copytree(folders / own, tmp_path / "here" / "out")
    for card in out.glob("README.md"):
        card.write_text("old")
    before, rename, left = contents(out), Path.rename, []

    def noted(path, target):
        if out in (path, Path(target)):
            left.append(shutil.copytree(out.parent, tmp_path / str(len(left))) / "out")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", noted)
    COMMANDS[own](folders, out, True)
    assert [folder.exists() for folder in left] == [True, False]
    for folder in left:
        read(folder)
        assert before.items() <= contents(folder).items()
    assert not before.items() <= contents(out).items()


def test_what_is_not_put_in_place_is_removed(tmp_path):
    with partial_folder(tmp_path / "new" / "out") as partial:
        (partial / "a").write_text("x")
    with pytest.raises(InputError), partial_folder(tmp_path / "out") as partial:
        raise InputError("not this one")
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]


def test_leftovers_of_a_killed_process_are_removed_by_the_next_one(tmp_path):
    out = tmp_path / "a[b]"  # not a pattern
    end = f"{'0123' * 8}.partial"
    (tmp_path / f".a[b].{end}" / "deep").mkdir(parents=True)
    others = [f".a[b].5.{end}", f".another.{end}"]  # being filled, perhaps
    for name in others:
        (tmp_path / name).mkdir()
    with partial_folder(out) as partial:
        replace_folder(partial, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == [*others, "a[b]"]


# --- Classifiers and exports are what was written, or they are refused by the name of a file ------


LOADERS = {"a classifier": load_classifier, "an export": load_model}
#: A model card is there to be edited, and the predictions are of test rows.
WITHOUT_SUM = {SUMS, "README.md", "predictions.csv"}


@pytest.mark.parametrize("kind", LOADERS)
def test_every_file_has_its_sum_and_a_wrong_byte_in_any_is_refused_by_its_name(
    kind, folders, tmp_path
):
    out = shutil.copytree(folders / kind, tmp_path / "out")
    lines = (line.split("  ") for line in (out / SUMS).read_text().splitlines())
    files = {name: data for name, data in contents(out).items() if name not in WITHOUT_SUM}
    found = [(hashlib.sha256(data).hexdigest(), name) for name, data in files.items()]
    assert sorted(found) == sorted(map(tuple, lines))
    rng = np.random.default_rng(0)
    for path in (out / name for name in (*files, SUMS)):
        whole = path.read_bytes()
        for at in rng.integers(0, len(whole), 5):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 7)]) + whole[at + 1 :])
            with pytest.raises(InputError, match=f"{out}"):
                LOADERS[kind](out)
        path.write_bytes(whole)
    LOADERS[kind](out)
    (out / SUMS).unlink()  # as in a folder that is not ours
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


def test_a_diverged_fine_tuning_leaves_no_classifier(folders, tmp_path):
    rows = str(folders / "rows.parquet")
    wild = replace(QUICK, learning_rate=1e30)
    with pytest.raises(DivergedError, match=r"diverged at a learning rate of 1e\+30: .* smaller"):
        finetune(folders / "a run", rows, out=tmp_path / "out", config=wild)
    assert not (tmp_path / "out").exists()
