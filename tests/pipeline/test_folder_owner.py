"""A command writes only into a folder that is empty or of its own kind, and alone."""

import shutil
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import LOCK, locked_folder
from clozeline.pipeline.common.folder_owner import check_replaceable, remove_files
from clozeline.pipeline.tokenization.train_tokenizer import make_tokenizer
from clozeline.train.artifacts.checkpoint import DAMAGED, list_checkpoints
from clozeline.train.export.export import export
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.finetune import finetune
from clozeline.train.pretraining.pretrain import pretrain
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import TEXT
from tests.support.files import contents
from tests.support.small import small_tokenizer
from tests.support.small_classifier import write_small_classifier
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
    write_rows(folder / "rows.parquet")
    return folder


def write_rows(path):
    rows = {"text": ["w1 w2", "w3 w4"] * 20, "label": [0, 1] * 20}
    pq.write_table(pa.table(rows), path)
    return str(path)


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
        pretrain(folders / "a data set", out=out, model=TINY, training=SHORT, init=tmp_path)
    assert not out.exists()


def test_files_of_a_folder_are_removed_and_nothing_else(tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).touch()
    remove_files(tmp_path, ["a", "missing"])
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["b", "c"]
    remove_files(tmp_path, ["b", "c"])
    assert not tmp_path.exists()
    remove_files(tmp_path, ["b"])


def test_links_count_as_files_that_would_be_removed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"not part of a thing \(link\)"):
        check_replaceable(tmp_path, "a thing", own=["config.json"])
