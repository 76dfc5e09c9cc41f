"""`shards` completes, repairs or replaces its own data sets, and never touches other files."""

import gzip
import json
import os
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import product

import pytest

from clozeline.pipeline.common.errors import ClozelineError, InputError, JobFailedError
from clozeline.pipeline.common.json_files import sealed
from clozeline.pipeline.dataset.manifest import JOB, MANIFEST, REPORT, read_manifest
from clozeline.pipeline.job.job import _run, plan_job
from clozeline.pipeline.job.out_folder import begin_job
from clozeline.pipeline.job.progress import Progress
from clozeline.pipeline.job.workers import Outcome
from clozeline.pipeline.report.dry_run import dry_run
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import Normalization
from clozeline.pipeline.verify.verify import verify
from tests.pipeline.test_job import OPTIONS, shards
from tests.pipeline.test_steps import CONFIG, TEXT
from tests.support.files import contents
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_jobs import shard_digests

OVERWRITE = replace(OPTIONS, overwrite=True)
TWO = replace(CONFIG, num_shards=2, validation=0.0)
OF_TWO = ["train-00000-of-00002.arrow", "train-00001-of-00002.arrow"]


DAMAGES = {
    "a missing shard": lambda out: (out / "train-00001-of-00003.arrow").unlink(),
    "a truncated shard": lambda out: os.truncate(out / "validation-00000-of-00001.arrow", 999),
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
    assert shards(copy)[1]
    assert without_job(copy / "out") == before
    assert shards(copy) == (read_manifest(copy / "out"), False)


OTHERS = {
    "tar shards of somebody else": {
        "train-00000-of-00009.tar": "theirs",
        "job.json": '{"queue": "gpu"}',
        "rejected.jsonl": "{}",
    },
    "a web app": {"manifest.json": '{"name": "app"}'},
    "broken JSON": {"manifest.json": "[" * 200_000, "job.json": "{"},
    "the source": {"train-00000-of-00001.txt": TEXT},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_folder_of_another_kind_is_refused_and_stays_as_it_is(name, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    for file, text in OTHERS[name].items():
        (out / file).write_text(text)
    before = contents(out)
    for call, options in product((shards, planned), (OPTIONS, OVERWRITE)):
        with pytest.raises(InputError, match=r"is not empty and not a data set \(\w.*; give --out"):
            call(tmp_path, options=options)
    assert contents(out) == before
    assert sorted(path.name for path in out.iterdir()) == sorted(before)


def planned(folder, options):
    """The dry run of the same command."""
    folders = {"tokenizer": folder / "tokenizer", "out": folder / "out"}
    source = [str(folder / "corpus.txt")]
    job = plan_job(source, folders["tokenizer"], folders["out"], CONFIG, options)
    return None if job.finished() else list(dry_run(job))


def save_other_tokenizer(folder):
    normalization = Normalization(lowercase=True, strip_accents=False)
    other = Tokenizer(small_tokenizer().tokens, normalization, PUNKT)
    other.save(folder)
    return other


def test_overwrite_removes_nothing_before_the_command_is_valid(copy):
    small_tokenizer().save(copy / "plain")
    small_tokenizer({"language": "none"}).save(copy / "bad")
    table = [
        ({"beam_args": ["--bogus=1"]}, "--bogus"),
        ({"beam_args": ["--runner=NoSuchRunner"]}, "Unexpected pipeline runner: NoSuchRunner"),
        ({"beam_args": ["--help"]}, "^0$"),  # printed, and a good end
        ({"tokenizer": copy / "plain"}, "no Punkt parameters; make it with `clozeline tokenizer`"),
        ({"tokenizer": copy / "bad"}, "the Punkt parameters are invalid"),
    ]
    before = contents(copy / "out")
    for more, message in table:
        error = SystemExit if message == "^0$" else InputError
        with pytest.raises(error, match=message):
            shards(copy, TWO, OVERWRITE, **more)
        assert contents(copy / "out") == before


def test_what_is_in_the_way_of_the_tokenizer_is_named_before_anything_goes(copy):
    (copy / "out" / "tokenizer" / "notes.txt").write_text("x")
    save_other_tokenizer(copy / "other")
    before = contents(copy / "out")
    with pytest.raises(InputError, match=r"holds files that are not part .*\(notes\.txt\)"):
        shards(copy, TWO, OVERWRITE, tokenizer=copy / "other")
    assert contents(copy / "out") == before
    shards(copy, TWO, OVERWRITE)  # with the same tokenizer it is in nobody's way
    assert (copy / "out" / "tokenizer" / "notes.txt").read_text() == "x"
    shutil.rmtree(copy / "out" / "tokenizer")
    (copy / "out" / "tokenizer").write_text("x")
    with pytest.raises(InputError, match=r"is a file, and the tokenizer goes there; move"):
        shards(copy)
    assert (copy / "out" / MANIFEST).exists()


def test_overwrite_replaces_config_and_tokenizer_and_touches_no_files_of_others(copy):
    """Also if the manifest or job.json name them."""
    out = copy / "out"
    theirs = [copy / "thesis.tex", out / "README.md", out / "notes.txt"]
    theirs += [out / "train-00007-of-00009.arrow", out / "validation-00009-of-00010.tar"]
    for path in (*theirs, out / REPORT):
        path.write_text("theirs")
    values = json.loads((out / MANIFEST).read_text())
    values["shards"] += [{"name": "../thesis.tex"}, {"name": "notes.txt"}, {"name": None}]
    (out / MANIFEST).write_text(json.dumps(sealed(values)))
    job = json.loads((out / JOB).read_text())
    job["files"] += ["../thesis.tex", str(theirs[0]), 5]
    (out / JOB).write_text(json.dumps(job))
    other = save_other_tokenizer(copy / "other")
    options = replace(OVERWRITE, token_cache=copy / "cache")
    manifest, is_new = shards(copy, TWO, options, tokenizer=copy / "other")
    assert (is_new, manifest.tokenizer_digest) == (True, other.digest)
    assert [path.read_text() for path in theirs] == ["theirs"] * 5
    assert not (out / REPORT).exists()
    assert sorted(shard_digests(out)) == [*OF_TWO, *(path.name for path in theirs[3:])]
    assert verify(out) == [f"{path.name}: not in the manifest" for path in theirs[3:]]
    assert list((copy / "cache").glob("*.tokens"))  # kept, for it was named


@pytest.mark.parametrize("workers", [1, 2])
def test_overwrite_keeps_the_old_data_set_until_all_text_is_read(workers, copy):
    """Also with another tokenizer; with a whole source, the same command continues."""
    out, packed = copy / "out", gzip.compress(TEXT.encode())
    cut = gzip.compress(TEXT.encode() * 50)[:-9]  # listing it reads less
    (copy / "text.txt.gz").write_bytes(cut)
    save_other_tokenizer(copy / "other")
    again = partial(shards, copy, TWO, replace(OVERWRITE, workers=workers), source="text.txt.gz")
    for more in ({}, {"tokenizer": copy / "other"}):
        before = {name: data for name, data in contents(out).items() if name != "job.log"}
        with pytest.raises(InputError, match="is not whole: truncated or corrupt gz"):
            again(**more)
        assert before.items() <= contents(out).items()
        assert verify(out) == []
        (copy / "text.txt.gz").write_bytes(packed)
        assert again(**more)[1]
        assert sorted(shard_digests(out)) == OF_TWO
        assert verify(out) == []
        assert not list(out.glob(".*"))
        (copy / "text.txt.gz").write_bytes(cut)


def json_lines(*keys):
    return "\n".join(json.dumps({key: f"{TEXT[:600]} {n}"}) for n, key in enumerate(keys))


REJECTED = r"reject.*new\.jsonl: byte 0 \(no 'text' in the JSON"
#: What is changed, the new source, its text, and what is said.
NOTHING_NEW = {
    "all is rejected": ({}, "new.jsonl", json_lines(*["body"] * 9), REJECTED),
    "too many": ({}, "new.jsonl", json_lines(*["body"] * 9, *["text"] * 9), REJECTED),
    "all is dropped": (
        {"quality": ("gopher",)},
        "a.txt",
        "There is a cat.\n\nThere is a dog.",
        r"every document was dropped \(quality_min_words 2\). Leave out",
    ),
    "documents of one sentence": (
        *({"pairs": "sentences"}, "a.txt", TEXT.replace("\n", " ").replace(". ", "\n\n")),
        r"no examples .*single_sentence_paragraph.* make no pairs; give --pairs none",
    ),
    "words over 100 characters": (
        {"pairs": "none"},
        "a.txt",
        "\n\n".join(letter * 900 for letter in "abcdefghij"),
        r"no examples .*nothing_to_mask.* WordPiece does not split words of over 100 .*--model bpe",
    ),
}


@pytest.mark.parametrize("name", NOTHING_NEW)
def test_overwrite_keeps_the_old_data_set_where_the_new_text_gives_none(name, copy):
    changes, source, text, message = NOTHING_NEW[name]
    (copy / source).write_text(text)
    before = {name: data for name, data in contents(copy / "out").items() if name != "job.log"}
    with pytest.raises(ClozelineError, match=message):
        shards(copy, replace(CONFIG, **changes), OVERWRITE, source=source)
    assert before.items() <= contents(copy / "out").items()
    assert verify(copy / "out") == []


def test_an_old_data_set_is_not_taken_for_the_new_one(copy):
    """Where a runner ends without an error before the last step."""
    folders = copy / "tokenizer", copy / "out"
    planned = plan_job([str(copy / "corpus.txt")], *folders, TWO, OVERWRITE)
    begun = replace(planned, context=begin_job(planned.context, planned.tokenizer))
    with pytest.raises(JobFailedError, match="the runner stopped before the last step"):
        _run(
            lambda context: Outcome(Counter(), is_last=True),
            begun,
            Progress(begun.blocks, begun.context),
        )
    assert read_manifest(copy / "out").config == CONFIG


def test_an_unfinished_job_of_another_config_is_replaced(copy):
    (copy / "out" / MANIFEST).unlink()
    shards(copy, TWO)
    assert sorted(shard_digests(copy / "out")) == OF_TWO
    assert verify(copy / "out") == []


def test_in_an_empty_folder_hidden_files_stay_and_a_linked_token_cache_is_emptied(tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "mine.txt").write_text("x")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".gitkeep").touch()
    (tmp_path / "out" / ".cache").symlink_to(tmp_path / "scratch")
    shards(tmp_path)
    assert [path.name for path in (tmp_path / "scratch").iterdir()] == ["mine.txt"]
    assert (tmp_path / "out" / ".gitkeep").exists()
    assert verify(tmp_path / "out") == []
