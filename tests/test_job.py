"""The job: finished or not finished, never half; and what went wrong is one line."""

import json
import shutil
import sys
import traceback
from dataclasses import replace

import pytest

from clozeline.pipeline.common.errors import InputError, JobFailedError
from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from clozeline.pipeline.job.context import sources_digest
from clozeline.pipeline.job.job import JobOptions, build_shards
from clozeline.pipeline.job.job_log import error_of_a_worker, last_line
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import Normalization
from clozeline.pipeline.verify.verify import verify
from tests.support.files import times
from tests.support.small import PUNKT, small_tokenizer
from tests.test_steps import CONFIG, TEXT, build, work

OPTIONS = JobOptions(workers=1, block_bytes=8000)  # one worker: in this process

OTHER_SOURCES = r"\(other sources or excluded texts, or their files changed\)"


def shards(folder, config=CONFIG, options=OPTIONS, *, source="corpus.txt", **more):
    """`clozeline shards` on a corpus in `folder`."""
    if not (folder / "tokenizer").exists():
        small_tokenizer(PUNKT).save(folder / "tokenizer")
        (folder / "corpus.txt").write_text(TEXT)
    facts = {"tokenizer": folder / "tokenizer", "out": folder / "out", **more}
    return build_shards([str(folder / source)], config=config, options=options, **facts)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    (folder / "out").mkdir()
    (folder / "out" / f".train-00000-of-00003.arrow.{'1' * 32}.partial").write_bytes(
        b"of a killed one"
    )
    shards(folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "job")


def test_a_job_leaves_a_sound_data_set_and_nothing_else(finished, tmp_path):
    assert list(verify(finished / "out")) == []
    names = sorted(path.name for path in (finished / "out").iterdir())
    assert names == [
        "job.json",
        "job.log",
        "manifest.json",
        "tokenizer",
        "train-00000-of-00003.arrow",
        "train-00001-of-00003.arrow",
        "train-00002-of-00003.arrow",
        "validation-00000-of-00001.arrow",
    ]
    # Beam adds nothing to what the steps make.
    manifest = build(*work(tmp_path))
    digest = read_manifest(finished / "out").sources_digest
    assert read_manifest(finished / "out") == replace(manifest, sources_digest=digest)


def test_how_it_went_stands_beside_and_not_in_the_manifest(finished):
    facts = json.loads((finished / "out" / "job.json").read_text())
    assert facts["sources"] == [str(finished / "corpus.txt")]
    assert facts["blocks"] > 1
    assert facts["beam_args"] == []  # one worker is this process
    assert facts["seconds"] > 0
    manifest = (finished / "out" / MANIFEST).read_text()
    assert str(finished) not in manifest
    assert "workers" not in manifest


def test_the_same_call_again_does_nothing(finished):
    before = times(finished / "out")
    manifest, is_new = shards(finished)
    assert not is_new
    assert manifest == read_manifest(finished / "out")
    assert times(finished / "out") == before


def test_another_config_or_tokenizer_is_refused_and_told_apart(finished, tmp_path):
    other = tmp_path / "other"
    flags = Normalization(lowercase=False, strip_accents=False)
    Tokenizer(small_tokenizer().tokens, flags, PUNKT).save(other)
    with pytest.raises(
        InputError,
        match=r"holds another finished data set \(max_seq_length 32 there, 64 now; "
        r"seed 0 there, 3 now; tokenizer \w{12} there, \w{12} now\)\. .*--overwrite",
    ):
        shards(finished, replace(CONFIG, max_seq_length=64, seed=3), tokenizer=other)
    assert (finished / "out" / MANIFEST).exists()


def test_what_a_killed_job_left_of_a_complete_data_set_goes(tmp_path):
    shards(tmp_path)
    out = tmp_path / "out"
    (out / ".cache").mkdir()
    (out / f".job.json.{'1' * 32}.partial").write_bytes(b"{")
    _, is_new = shards(tmp_path)
    assert not is_new
    assert list(out.glob(".*")) == []


def test_beam_works_in_this_process_unless_a_runner_is_named(tmp_path):
    shards(tmp_path, beam_args=["--job_name=mine"])
    assert json.loads((tmp_path / "out" / "job.json").read_text())["beam_args"] == [
        "--job_name=mine"
    ]
    assert "apache_beam" in sys.modules


def test_workers_are_of_a_job_without_beam(tmp_path):
    with pytest.raises(InputError, match=r"--workers 3 is for jobs without Beam; leave it out, or"):
        shards(tmp_path, options=replace(OPTIONS, workers=3), beam_args=["--job_name=mine"])
    assert not (tmp_path / "out").exists()


def test_an_option_that_is_left_out_now_makes_another_data_set(copy):
    """Those of curation are stored only where they are given."""
    (copy / "test.txt").write_text(TEXT[:500])
    config = replace(CONFIG, quality=("min_words=5",), exclude=(str(copy / "test.txt"),))
    shards(copy, config, replace(OPTIONS, overwrite=True))
    with pytest.raises(InputError, match=r"quality .* there, \(\) now; exclude .* there, \(\) now"):
        shards(copy)
    assert not shards(copy, config)[1]
    (copy / "test.txt").write_text(TEXT[:600])
    with pytest.raises(InputError, match=OTHER_SOURCES):
        shards(copy, config)


@pytest.mark.parametrize("lost", [(), ("job.json", "job.log")])
def test_other_sources_are_refused_whatever_is_gone_of_the_job(copy, lost):
    for name in lost:
        (copy / "out" / name).unlink()
    (copy / "more.txt").write_text("Another text, which nobody has read before.")
    with pytest.raises(InputError, match=OTHER_SOURCES):
        shards(copy, source="more.txt")
    shutil.copy(copy / "more.txt", copy / "corpus.txt")
    with pytest.raises(InputError, match=OTHER_SOURCES):
        shards(copy)


def test_the_same_files_in_another_folder_are_the_same_sources(copy):
    (copy / "moved").mkdir()
    (copy / "corpus.txt").rename(copy / "moved" / "corpus.txt")  # keeps the time of change
    _, is_new = shards(copy, source="moved/corpus.txt")
    assert not is_new


def test_neither_their_order_nor_the_size_of_blocks_makes_other_sources(tmp_path):
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    digest = sources_digest(list_blocks(files))
    assert sources_digest(list_blocks(files[::-1])) == digest
    assert sources_digest(list_blocks(files, block_bytes=1)) == digest
    assert sources_digest(list_blocks(files[:1])) != digest


@pytest.mark.parametrize("pairs", ["sentences", "segments"])
def test_a_lone_document_that_is_used_again_is_sound(pairs, copy):
    """It has no other document for a random B, so more of its pairs follow than not."""
    (copy / "extra.txt").write_text("It has two sentences at least. This is the second. A third.\n")
    sources = [str(copy / "corpus.txt"), f"{copy / 'extra.txt'}?repeat=2"]
    config = replace(CONFIG, pairs=pairs, num_shards=1, validation=0.0)
    build_shards(
        sources, tokenizer=copy / "tokenizer", out=copy / "two", config=config, options=OPTIONS
    )
    assert list(verify(copy / "two")) == []


def test_a_source_with_and_without_an_option_has_a_digest():
    sources = [f"sample:reviews?rows=10{option}" for option in ("", "&start=50", "&repeat=2")]
    digests = [sources_digest(list_blocks(some)) for some in (sources, sources[::-1], sources[:2])]
    assert digests[0] == digests[1] != digests[2]


def test_two_parts_of_a_source_are_not_the_whole():
    def digest(*sources):
        return sources_digest(list_blocks(sources, block_bytes=1000))

    whole, parts = (
        "sample:reviews?rows=30",
        ("sample:reviews?rows=10", "sample:reviews?rows=10&start=20"),
    )
    assert digest(*parts) == digest(*parts[::-1]) != digest(whole)
    assert digest("sample:reviews?rows=10", "sample:reviews?rows=20&start=10") == digest(whole)


def test_of_a_workers_error_its_own_message_is_shown_and_not_its_cause():
    try:
        try:
            raise InputError("a.parquet is corrupt at its end")
        except InputError as error:
            raise InputError("a.parquet changed while it was read") from error
    except InputError as error:
        carried = RuntimeError("".join(traceback.format_exception(error)) + " [while running 'x']")
    found = error_of_a_worker(carried)
    assert isinstance(found, InputError)
    assert str(found) == "a.parquet changed while it was read"


def test_the_reason_of_a_job_is_a_line_of_words_and_not_a_frame_of_a_stack():
    cause = "Caused by: java.net.ConnectException: Connection refused: /127.0.0.1:8081"
    frames = "\n\tat java.base/sun.nio.ch.Net.pollConnect(Native Method)\n\t... 5 more\n}\n"
    assert last_line(f"java.lang.RuntimeException: no master\n{cause}{frames}") == cause
    assert last_line("Traceback\n  at the end (of it)\nValueError: no\n\n") == "ValueError: no"
    assert last_line("...") == ""


def test_the_cache_of_a_killed_job_goes_when_another_cache_finishes_it(tmp_path):
    left = tmp_path / "out" / ".cache"
    left.mkdir(parents=True)
    (left / "00000.tokens").write_bytes(b"of a killed one")
    shards(tmp_path, options=replace(OPTIONS, token_cache=tmp_path / "kept"))
    assert not left.exists()
    assert list((tmp_path / "kept").iterdir())
    shards(tmp_path, options=replace(OPTIONS, token_cache=tmp_path / "kept"))
    assert list((tmp_path / "kept").iterdir())


def test_a_data_set_without_its_job_file_is_taken_as_it_is(finished, tmp_path):
    copied = shutil.copytree(finished / "out", tmp_path / "out")
    (copied / "job.json").unlink()
    _, is_new = shards(finished, out=copied)
    assert not is_new


def test_overwrite_replaces_config_and_tokenizer_and_touches_no_files_of_others(copy, tmp_path):
    flags = Normalization(lowercase=True, strip_accents=False)
    other = Tokenizer(small_tokenizer().tokens, flags, PUNKT)
    other.save(tmp_path / "other")
    foreign = copy / "out" / "train-00007-of-00009.arrow"
    foreign.write_bytes(b"somebody's")
    cache = tmp_path / "cache"
    manifest, is_new = shards(
        copy,
        replace(CONFIG, num_shards=2, validation=0.0),
        replace(OPTIONS, overwrite=True, token_cache=cache),
        tokenizer=tmp_path / "other",
    )
    assert is_new
    assert manifest.tokenizer_digest == other.digest
    assert list(verify(copy / "out")) == [f"{foreign.name}: not in the manifest"]
    left = sorted(path.name for path in (copy / "out").glob("*.arrow"))
    assert left == ["train-00000-of-00002.arrow", "train-00001-of-00002.arrow", foreign.name]
    assert foreign.read_bytes() == b"somebody's"
    assert list(cache.glob("*.tokens"))  # kept, for it was named


def test_a_failed_job_is_one_line_and_goes_on_from_where_it_stopped(tmp_path):
    lines = [json.dumps({"text": text}) for text in TEXT.split("\n\n")]
    (tmp_path / "bad.jsonl").write_text("\n".join([*lines, "{no json"]))
    strict = replace(CONFIG, max_rejected=0.0)
    with pytest.raises(JobFailedError) as failed:
        shards(tmp_path, strict, source="bad.jsonl")
    message = str(failed.value)
    assert message.startswith("1 of 61 documents were rejected, more than the 0")
    assert message.endswith("Fix the source or allow more.")
    assert "\n" not in message
    out = tmp_path / "out"
    assert not (out / MANIFEST).exists()
    assert "Traceback" in (out / "job.log").read_text()
    assert f"{tmp_path}/bad.jsonl:61" in (out / "rejected.jsonl").read_text()

    before = {path: path.stat().st_ino for path in out.glob("*.arrow")}
    assert len(before) == 4
    manifest, _ = shards(tmp_path, replace(CONFIG, max_rejected=0.1), source="bad.jsonl")
    assert manifest.counts["rejected"] == 1
    assert {path: path.stat().st_ino for path in out.glob("*.arrow")} == before
    assert not (out / ".cache").exists()


def test_what_fails_before_the_work_leaves_no_folder(tmp_path):
    with pytest.raises(InputError, match=r"nothing\.txt: no such file; check the path"):
        shards(tmp_path, source="nothing.txt")
    with pytest.raises(InputError, match="not a tokenizer folder"):
        shards(tmp_path, tokenizer=tmp_path / "nowhere")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("values", [{"workers": -1}, {"block_bytes": 0}])
def test_job_options_that_cannot_be(values):
    [name] = values
    with pytest.raises(ValueError, match=f"{name} is {values[name]}; give"):
        JobOptions(**values)
