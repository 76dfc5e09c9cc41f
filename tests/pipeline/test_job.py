"""The job: finished or not finished, never half; and what went wrong is one line."""

import json
import os
import shutil
import traceback
from dataclasses import replace

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from clozeline.pipeline.job.job import build_shards
from clozeline.pipeline.job.options import JobOptions
from clozeline.pipeline.job.progress import error_of_a_worker, last_line
from clozeline.pipeline.sources.formats import list_blocks
from clozeline.pipeline.steps.context import sources_digest
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import Normalization
from clozeline.pipeline.verify.verify import verify
from tests.pipeline.test_steps import CONFIG, TEXT, build, work
from tests.support.files import times
from tests.support.small import PUNKT, small_tokenizer

OPTIONS = JobOptions(workers=1, block_bytes=8000)

BEAM = ["--job_name=mine"]
OTHER_SOURCES = r"\(other sources or excluded texts, or another size or time of change of th"


def shards(folder, config=CONFIG, options=OPTIONS, *, source="corpus.txt", **more):
    """`clozeline shards` on a corpus in `folder`."""
    if not (folder / "tokenizer").exists():
        small_tokenizer(PUNKT).save(folder / "tokenizer")
        (folder / "corpus.txt").write_text(TEXT)
    facts = {"tokenizer": folder / "tokenizer", "out": folder / "out", **more}
    return build_shards([str(folder / source)], config=config, options=options, **facts)


def test_a_job_leaves_a_sound_data_set_and_nothing_else(finished, tmp_path):
    assert verify(finished / "out") == []
    names = sorted(path.name for path in (finished / "out").iterdir())
    train = [f"train-0000{shard}-of-00003.arrow" for shard in range(3)]
    rest = ["tokenizer", *train, "validation-00000-of-00001.arrow"]
    assert names == ["job.json", "job.log", "manifest.json", *rest]
    # The job adds nothing to what the steps make.
    manifest = build(*work(tmp_path))
    digest = read_manifest(finished / "out").sources_digest
    assert read_manifest(finished / "out") == replace(manifest, sources_digest=digest)


def test_how_it_went_stands_beside_and_not_in_the_manifest(finished):
    facts = json.loads((finished / "out" / "job.json").read_text())
    assert facts["sources"] == [str(finished / "corpus.txt")]
    assert facts["blocks"] > 1
    assert facts["beam_args"] == []
    assert facts["seconds"] > 0
    manifest = (finished / "out" / MANIFEST).read_text()
    assert str(finished) not in manifest
    assert "workers" not in manifest


def test_the_same_call_again_removes_what_a_killed_one_left_and_changes_nothing(copy):
    out = copy / "out"
    (out / "job.json").unlink()  # is not needed either
    before = times(out)
    (out / ".cache").mkdir()
    (out / f".job.json.{'1' * 32}.partial").write_bytes(b"{")
    assert shards(copy) == (read_manifest(out), False)
    assert list(out.glob(".*")) == []
    assert times(out) == before


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


def test_an_option_that_is_left_out_now_makes_another_data_set(copy):
    """Those of curation are stored only where they are given."""
    (copy / "test.txt").write_text(TEXT[:500])
    config = replace(CONFIG, quality=("fineweb",), exclude=(str(copy / "test.txt"),))
    shards(copy, config, replace(OPTIONS, overwrite=True))
    with pytest.raises(InputError, match=r"quality .* there, none now; exclude .* there, none now"):
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


def test_the_same_files_in_another_folder_are_the_same_sources_and_those_of_another_time_not(copy):
    (copy / "moved").mkdir()
    moved = (copy / "corpus.txt").rename(copy / "moved" / "corpus.txt")  # keeps the time of change
    assert not shards(copy, source="moved/corpus.txt")[1]
    os.utime(moved, (1e9, 1e9))
    with pytest.raises(InputError, match=OTHER_SOURCES):
        shards(copy, source="moved/corpus.txt")
    assert verify(copy / "out", [str(moved)]) == []


def test_order_and_blocks_make_no_other_sources_but_options_and_parts_do(tmp_path):
    def digest(*sources, block_bytes=1000):
        return sources_digest(list_blocks(sources, block_bytes=block_bytes))

    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    options = [f"sample:reviews?rows=10{option}" for option in ("", "&start=50", "&repeat=2")]
    for some in (files, options):
        same = {digest(*some), digest(*some[::-1]), digest(*some, block_bytes=1)}
        assert len(same) == 1 != len(same | {digest(*some[:-1])})
    first, last = "sample:reviews?rows=10", "sample:reviews?rows=20&start=10"
    whole = digest("sample:reviews?rows=30")
    assert digest(first, last) == whole != digest(first, "sample:reviews?rows=10&start=20")


@pytest.mark.parametrize("pairs", ["sentences", "segments"])
def test_a_lone_document_that_is_used_again_is_sound(pairs, copy):
    """It has no other document for a random B, so more of its pairs follow than not."""
    (copy / "extra.txt").write_text("It has two sentences at least. This is the second. A third.\n")
    sources = [str(copy / "corpus.txt"), f"{copy / 'extra.txt'}?repeat=2"]
    config = replace(CONFIG, pairs=pairs, num_shards=1, validation=0.0)
    folders = {"tokenizer": copy / "tokenizer", "out": copy / "two"}
    build_shards(sources, config=config, options=OPTIONS, **folders)
    assert verify(copy / "two") == []


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
    for _ in range(2):
        shards(tmp_path, options=replace(OPTIONS, token_cache=tmp_path / "kept"))
        assert not left.exists()
        assert list((tmp_path / "kept").iterdir())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"source": "nothing.txt"}, r"nothing\.txt: no such file; check the path"),
        ({"tokenizer": "nowhere"}, "not a tokenizer folder"),
        *[({"config": DataConfig(pairs=pairs, short_seq_prob=0.2)},
           f"^--short-seq-prob does nothing with --pairs {pairs}; leave it out, or use --pairs s")
          for pairs in ("none", "sentences", "packed")],
        ({"config": DataConfig(text_columns=("body",))},
         "^--text-columns body does nothing: each source is plain text, or names its own"),
        ({"options": JobOptions(workers=3), "beam_args": BEAM}, "^--workers 3 is for this machine"),
        ({"options": JobOptions(task="0/1"), "beam_args": BEAM}, "^--task runs on this machine; l"),
    ],
)  # fmt: skip
def test_what_fails_before_the_work_leaves_no_folder(more, message, tmp_path):
    with pytest.raises(InputError, match=message):
        shards(tmp_path, **more)
    assert not (tmp_path / "out").exists()
