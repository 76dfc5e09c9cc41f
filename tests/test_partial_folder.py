"""A folder that is replaced is the old one or the new one, at whatever instant the writer dies."""

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.partial_folder import partial_folder, replace_folder
from tests.support.small_jobs import python

#: Replaces a folder again and again. The N-th process is killed at its N-th event: whatever opens
#: (to write or to sync), renames or removes a file. Prints what a reader finds after each.
KILLS = """
import os, signal, sys
from itertools import count
from pathlib import Path
from clozeline.train.artifacts.partial_folder import partial_folder, replace_folder, restore_folder

EVENTS = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")

def write(text):
    with partial_folder(out) as partial:
        (partial / "deep").mkdir()
        for name in ("a", "deep/b"):
            (partial / name).write_text(text)
        replace_folder(partial, out)

def content():
    restore_folder(out)
    names = sorted(str(path.relative_to(out)) for path in out.rglob("*"))
    return " ".join([*names, (out / "a").read_text(), (out / "deep" / "b").read_text()])

def die_at(number):
    seen = 0
    def kill(event, arguments):
        nonlocal seen
        seen += event in EVENTS
        if seen == number and event in EVENTS:
            os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(kill)

out = Path(sys.argv[1])
write("old")
for number in count(1):
    child = os.fork()
    if not child:
        die_at(number)
        write("new")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    print(os.WTERMSIG(status), content())
    write("old")
    assert [path.name for path in out.parent.iterdir()] == [out.name], "something was left"
    if status == 0:
        break
"""


def test_killed_at_any_instant_the_old_or_the_new_folder_is_there(tmp_path):
    *killed, finished = python("-c", KILLS, tmp_path / "out").splitlines()
    old, new = "9 a deep deep/b old old", "9 a deep deep/b new new"
    assert finished == "0 a deep deep/b new new"
    assert {*killed} == {old, new}
    assert killed == sorted(killed, reverse=True), "once it is new, it stays new"
    assert killed.count(old) > 8


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


#: A classifier and an export are replaced by processes that are killed at each rename of theirs.
USERS = """
import os, signal, sys
from pathlib import Path
import torch
from clozeline.model.heads import BertForClassification, BertForPretraining
from tests.support.small import small_tokenizer
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY
from clozeline.train.artifacts.pretrained import load_pretrained
from clozeline.train.export.export import export
from clozeline.train.finetuning.classifier import Classifier, load_classifier, save_classifier

folder = Path(sys.argv[1])

def write_classifier(seed):
    torch.manual_seed(seed)
    model = BertForClassification(TINY, 2)
    torch.nn.init.constant_(model.classifier.bias, seed)
    classifier = Classifier(model=model, tokenizer=small_tokenizer(), names=("a", "b"),
                            text="text", text_pair=None, max_seq_length=16)
    save_classifier(folder / "classifier", classifier, job={}, report={"finetuned": {}}, files={})

def write_export(seed):
    model = BertForPretraining(TINY)
    torch.nn.init.constant_(model.nsp_head.bias, seed)
    run = folder / f"run-{seed}-{os.getpid()}"
    write_small_run(run, model, small_tokenizer(), max_seq_length=16)
    export(run, out=folder / "export", overwrite=True)

def read_classifier():
    return load_classifier(folder / "classifier").model.classifier.bias[0].item()

def read_export():
    return load_pretrained(folder / "export").weights["nsp_head.bias"][0].item()

for write, read in ((write_classifier, read_classifier), (write_export, read_export)):
    write(1)
    for number in (1, 2):
        child = os.fork()
        if not child:
            seen = 0
            def kill(event, arguments):
                global seen
                if event == "os.rename" and folder / read.__name__[5:] in map(Path, arguments[:2]):
                    seen += 1
                    if seen == number:
                        os.kill(os.getpid(), signal.SIGKILL)
            sys.addaudithook(kill)
            write(2)
            os._exit(0)
        print(os.WTERMSIG(os.waitpid(child, 0)[1]), read())
    write(3)
    print(read())
"""


def test_a_classifier_and_an_export_survive_a_kill_at_each_rename(tmp_path):
    assert python("-c", USERS, tmp_path).split() == ["9", "1.0", "9", "1.0", "3.0"] * 2
