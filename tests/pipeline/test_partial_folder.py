"""A folder that is replaced is the old one or the new one, at whatever instant the writer dies."""

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.partial_folder import partial_folder, replace_folder
from tests.support.small_jobs import python

#: Replaces a plain folder, a classifier and an export again and again. The N-th process is killed
#: at its N-th event: whatever opens (to write or to sync), renames or removes a file; of a
#: classifier and an export only renames of the folder. Prints what a reader finds after each.
KILLS = """
import os, signal, sys
from itertools import count
from pathlib import Path
import torch
from clozeline.model.heads import BertForClassification, BertForPretraining
from clozeline.train.artifacts.partial_folder import partial_folder, replace_folder, restore_folder
from clozeline.train.artifacts.pretrained import load_pretrained
from clozeline.train.export.export import export
from clozeline.train.finetuning.classifier import Classifier, load_classifier, save_classifier
from tests.support.small import small_tokenizer
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY

EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")
folder = Path(sys.argv[1])
out = folder / "plain" / "out"

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

def write_classifier(seed):
    torch.manual_seed(seed)
    model = BertForClassification(TINY, 2)
    torch.nn.init.constant_(model.classifier.bias, seed)
    classifier = Classifier(model=model, tokenizer=small_tokenizer(), names=("a", "b"),
                            text="text", text_pair=None, max_seq_length=16)
    save_classifier(folder / "classifier", classifier, job={}, report={"finetuned": {}}, files={})

def read_classifier():
    return load_classifier(folder / "classifier").model.classifier.bias[0].item()

for seed in (1, 2):
    model = BertForPretraining(TINY)
    torch.nn.init.constant_(model.nsp_head.bias, seed)
    write_small_run(folder / f"run-{seed}", model, small_tokenizer(), max_seq_length=16)

def write_export(seed):
    export(folder / f"run-{seed}", out=folder / "export", overwrite=True)

def read_export():
    return load_pretrained(folder / "export").weights["nsp_head.bias"][0].item()

def die_at(number, is_event):
    seen = 0
    def kill(event, arguments):
        nonlocal seen
        if is_event(event, arguments):
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)  # raises an event, too, which is not counted
    sys.addaudithook(kill)

def is_rename(event, arguments):
    mine = {folder / "classifier", folder / "export"}
    return event == "os.rename" and not mine.isdisjoint(map(Path, arguments[:2]))

for write, read, is_event in (
    (write, read, lambda event, arguments: event in EVENTS),
    (write_classifier, read_classifier, is_rename),
    (write_export, read_export, is_rename),
):
    write(1)
    for number in count(1):
        child = os.fork()
        if not child:
            die_at(number, is_event)
            write(2)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status), read())
        write(1)
        assert os.listdir(out.parent) == [out.name], "something was left"
        if status == 0:
            break
"""


def test_killed_at_any_instant_the_old_or_the_new_folder_is_there(tmp_path):
    plain, of_models = python("-c", KILLS, tmp_path).split("\n0 a deep deep/b 2 2\n")
    killed, old, new = plain.splitlines(), "9 a deep deep/b 1 1", "9 a deep deep/b 2 2"
    assert {*killed} == {old, new}
    assert killed == sorted(killed), "once it is new, it stays new"
    assert killed.count(old) > 8
    assert of_models.splitlines() == 2 * ["9 1.0", "9 1.0", "0 2.0"]


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
