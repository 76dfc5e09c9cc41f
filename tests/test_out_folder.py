"""`shards` completes, repairs or replaces its own data sets, and never touches other files."""

import json
import os
import shutil
from dataclasses import replace

import pytest

from clozeline.pipeline.common.errors import InputError, JobFailedError
from clozeline.pipeline.dataset.manifest import JOB, MANIFEST, read_manifest
from clozeline.pipeline.job.job import plan_shards
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import Normalization
from clozeline.pipeline.verify.verify import verify
from tests.support.files import contents
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_jobs import shard_digests
from tests.test_job import OPTIONS, shards
from tests.test_steps import CONFIG, TEXT

OVERWRITE = replace(OPTIONS, overwrite=True)
TWO = replace(CONFIG, num_shards=2, validation=0.0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out_folder")
    shards(folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    """A finished data set, its source and tokenizer, to spoil."""
    return shutil.copytree(finished, tmp_path / "job")


# ---- complete means present and of the right size ----------------------------------------------


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES = {
    "a missing shard": lambda out: (out / "train-00001-of-00003.arrow").unlink(),
    "a truncated shard": lambda out: cut(out / "validation-00000-of-00001.arrow"),
    "a missing tokenizer": lambda out: shutil.rmtree(out / "tokenizer"),
    "a missing tokenizer.json": lambda out: (out / "tokenizer" / "tokenizer.json").unlink(),
}


def without_job(out):
    """What follows from text and config."""
    return {name: data for name, data in contents(out).items() if not name.startswith("job.")}


@pytest.mark.parametrize("name", DAMAGES)
def test_the_same_command_repairs_what_is_missing_or_cut(name, copy):
    before = without_job(copy / "out")
    DAMAGES[name](copy / "out")
    manifest, is_new = shards(copy)
    assert is_new
    assert manifest == read_manifest(copy / "out")
    assert without_job(copy / "out") == before
    _, is_new = shards(copy)
    assert not is_new


def test_a_kept_token_cache_limits_the_repair_to_what_is_missing(tmp_path):
    options = replace(OPTIONS, token_cache=tmp_path / "cache")
    shards(tmp_path, options=options)
    (tmp_path / "out" / "train-00001-of-00003.arrow").unlink()
    kept = {path: path.stat().st_ino for path in (tmp_path / "out").glob("*.arrow")}
    assert len(kept) == 3
    shards(tmp_path, options=options)
    after = {path: path.stat().st_ino for path in (tmp_path / "out").glob("*.arrow")}
    assert kept.items() < after.items()


def test_only_old_unfinished_files_of_a_kept_token_cache_go(tmp_path):
    """Another job may be writing a newer one; what is not named as ours is not ours."""
    cache, digits = tmp_path / "cache", "0" * 32
    cache.mkdir()
    names = [f".{age}.tokens.{digits}.partial" for age in ("old", "new")]
    for name in (*names, ".somebody.partial"):
        (cache / name).write_bytes(b"x")
    for name in (names[0], ".somebody.partial"):
        os.utime(cache / name, (1e9, 1e9))
    shards(tmp_path, options=replace(OPTIONS, token_cache=cache))
    hidden = sorted(path.name for path in cache.glob(".*"))
    assert hidden == [names[1], ".somebody.partial"]


# ---- only what is empty or its own -------------------------------------------------------------

OTHERS = {
    "tar shards of somebody else": {
        "train-00000-of-00009.tar": "theirs",
        "job.json": '{"queue": "gpu"}',
        "rejected.jsonl": "{}",
    },
    "a web app": {"manifest.json": '{"name": "app"}'},
    "broken JSON": {"manifest.json": "[" * 200_000, "job.json": "{"},
}


@pytest.mark.parametrize("options", [OPTIONS, OVERWRITE], ids=["new", "overwrite"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_folder_of_another_kind_is_refused_and_stays_as_it_is(name, options, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for file, text in OTHERS[name].items():
        (out / file).write_text(text)
    before = contents(out)
    for call in (shards, planned):
        with pytest.raises(InputError, match=r"is not empty and not a data set \(\w.*; give --out"):
            call(tmp_path, options=options)
    assert contents(out) == before
    assert sorted(path.name for path in out.iterdir()) == sorted(before)


def planned(folder, options):
    """The dry run of the same command."""
    folders = {"tokenizer": folder / "tokenizer", "out": folder / "out"}
    source = [str(folder / "corpus.txt")]
    return list(plan_shards(source, config=CONFIG, options=options, **folders))


def test_the_source_beside_the_shards_is_not_removed(tmp_path):
    shards(tmp_path)  # makes the tokenizer
    (tmp_path / "mine").mkdir()
    source = tmp_path / "mine" / "train-00000-of-00001.txt"
    source.write_text(TEXT)
    with pytest.raises(InputError, match="is not empty and not a data set"):
        shards(tmp_path, source="mine/train-00000-of-00001.txt", out=tmp_path / "mine")
    assert source.read_text() == TEXT


def test_a_folder_with_hidden_files_only_is_empty(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".gitkeep").touch()
    shards(tmp_path)
    assert (tmp_path / "out" / ".gitkeep").exists()


def tokenizer_without_punkt(folder):
    small_tokenizer().save(folder / "plain")
    return {"tokenizer": folder / "plain"}


def tokenizer_with_bad_punkt(folder):
    small_tokenizer({"language": "none"}).save(folder / "bad")
    return {"tokenizer": folder / "bad"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"beam_args": ["--bogus=1"]}, "--bogus"),
        ({"beam_args": ["--direct_num_workers=many"]}, "Beam rejects the options after --"),
        ({"beam_args": ["--runner=NoSuchRunner"]}, "Unexpected pipeline runner: NoSuchRunner"),
        ({"beam_args": ["--help"]}, "^0$"),  # printed, and a good end
        (tokenizer_without_punkt, "has no Punkt parameters"),
        (tokenizer_with_bad_punkt, "the Punkt parameters are invalid"),
    ],
)
def test_overwrite_removes_nothing_before_the_command_is_valid(more, message, copy):
    more = more if isinstance(more, dict) else more(copy)
    before = contents(copy / "out")
    with pytest.raises(SystemExit if message == "^0$" else InputError, match=message) as refused:
        shards(copy, TWO, OVERWRITE, **more)
    assert "\n" not in str(refused.value)
    assert contents(copy / "out") == before


def test_a_foreign_file_in_the_folder_of_the_tokenizer_is_named_before_anything_goes(copy):
    (copy / "out" / "tokenizer" / "notes.txt").write_text("x")
    Tokenizer(
        small_tokenizer().tokens, Normalization(lowercase=True, strip_accents=False), PUNKT
    ).save(copy / "other")
    before = contents(copy / "out")
    with pytest.raises(InputError, match=r"holds files that are not part .*\(notes\.txt\)"):
        shards(copy, TWO, OVERWRITE, tokenizer=copy / "other")
    assert contents(copy / "out") == before
    shards(copy, TWO, OVERWRITE)  # with the same tokenizer it is in nobody's way
    assert (copy / "out" / "tokenizer" / "notes.txt").read_text() == "x"


def test_a_file_in_the_place_of_the_tokenizer_is_named(copy):
    shutil.rmtree(copy / "out" / "tokenizer")
    (copy / "out" / "tokenizer").write_text("x")
    with pytest.raises(InputError, match=r"is a file, and the tokenizer goes there; move"):
        shards(copy)
    assert (copy / "out" / MANIFEST).exists()


def test_a_manifest_cannot_name_files_outside_the_folder(copy):
    thesis, inside = copy / "thesis.tex", copy / "out" / "notes.txt"
    for path in (thesis, inside):
        path.write_text("x")
    values = json.loads((copy / "out" / MANIFEST).read_text())
    values["shards"] += [{"name": "../thesis.tex"}, {"name": "notes.txt"}, {"name": None}, 7]
    (copy / "out" / MANIFEST).write_text(json.dumps(values))
    job = json.loads((copy / "out" / JOB).read_text())
    job["files"] += ["../thesis.tex", str(thesis), 5]
    (copy / "out" / JOB).write_text(json.dumps(job))
    shards(copy, TWO, OVERWRITE)
    assert thesis.read_text() == inside.read_text() == "x"
    assert list(verify(copy / "out")) == []


def test_an_unfinished_job_of_another_config_is_replaced(tmp_path):
    lines = [json.dumps({"text": text}) for text in TEXT.split("\n\n")]
    (tmp_path / "bad.jsonl").write_text("\n".join([*lines, "{no json"]))
    with pytest.raises(JobFailedError):
        shards(tmp_path, replace(CONFIG, max_rejected=0.0), source="bad.jsonl")
    out = tmp_path / "out"
    assert len(shard_digests(out)) == 4
    assert not (out / MANIFEST).exists()
    shards(tmp_path, TWO)
    assert sorted(shard_digests(out)) == [
        "train-00000-of-00002.arrow",
        "train-00001-of-00002.arrow",
    ]
    assert list(verify(out)) == []


def test_a_linked_token_cache_is_emptied_and_stays(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "mine.txt").write_text("x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".cache").symlink_to(tmp_path / "scratch")
    shards(tmp_path)
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["mine.txt"]
    assert list(verify(tmp_path / "out")) == []
