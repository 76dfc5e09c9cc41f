"""Bad text, options, folders and disks: one clear line and exit code 2 (1 if the job failed on the
way), or, where only a part is bad, a data set of the rest that says what it left out.

Commands run in-process where a process of its own is not the point.
"""

import gzip
import json
import re
import shutil
import subprocess
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from clozeline.pipeline.commandline.beam_options import _end
from clozeline.pipeline.dataset.manifest import MANIFEST, REJECTED, read_manifest
from tests.faults.artifacts import dump_of
from tests.faults.trials import TRIALS
from tests.support.command import invoke, refused
from tests.support.files import no_file_longer_than
from tests.support.small_jobs import articles, clozeline, write_parquet, write_tokenizer

GOOD = "A line that is long enough to be a paragraph. It has two sentences."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """good.parquet and a tokenizer that fits it."""
    folder = tmp_path_factory.mktemp("bad_input")
    texts = articles(130)
    write_parquet(folder / "good.parquet", texts)
    write_tokenizer(folder / "tokenizer", texts)
    return folder


def shards_line(source, out, *options):
    tokenizer = ("--tokenizer", Path(source).parent / "tokenizer")
    return ["shards", source, *tokenizer, "--out", out, "--workers=1", *options]


def build(source, out, *options):
    """The data set of one source, and what was said of it on standard error."""
    result = invoke(*shards_line(source, out, *options))
    assert result.exit_code == 0, (result.output, result.exception)
    usual = ("dropped ", "Next: ", "note: these are `segments` pairs; ")
    said = [line for line in result.stderr.splitlines(True) if not line.startswith(usual)]
    return read_manifest(out), "".join(said)


def leftovers(out):
    """Files that look like a result, or like the half of one."""
    wanted = (MANIFEST, ".partial", ".tar", ".arrow")
    files = [path.name for path in out.rglob("*") if path.name.endswith(wanted)]
    return [name for name in files if not name.endswith(".tokens")]


def test_an_error_in_a_worker_process_is_the_same_line(folder, tmp_path):
    data = bytearray((folder / "good.parquet").read_bytes())
    column = pq.ParquetFile(folder / "good.parquet").metadata.row_group(1).column(0)
    data[column.data_page_offset : column.data_page_offset + 200] = b"\xff" * 200
    (folder / "corrupt.parquet").write_bytes(data)
    here = refused(*shards_line(folder / "corrupt.parquet", tmp_path / "one"))
    there = clozeline(*shards_line(folder / "corrupt.parquet", tmp_path / "two", "--workers=2"))
    assert f"{folder / 'corrupt.parquet'} is corrupt near row " in here
    assert there.returncode == 2
    assert there.stderr.splitlines()[-1] == f"Error: {here}"
    assert "Traceback" not in there.stderr
    assert leftovers(tmp_path) == []


def test_too_many_rejected_documents_fail_the_job_and_are_listed(folder, tmp_path):
    lines = [json.dumps({"text": f"{GOOD} Number {number}."}) for number in range(45)]
    lines[::9] = ['{"text": 5}'] * 5
    (folder / "mixed.jsonl").write_text("\n".join(lines))
    out = tmp_path / "out"
    line = refused(*shards_line(folder / "mixed.jsonl", out), code=1)
    assert line.startswith("5 of 45 documents were rejected, more than the 0 that --max-rejected ")
    assert f"mixed.jsonl: byte 0 ('text' is not text), all are in {out / REJECTED}" in line
    assert len((out / REJECTED).read_text().splitlines()) == 5
    assert not (out / MANIFEST).exists()
    manifest, said = build(folder / "mixed.jsonl", out, "--max-rejected=0.2")
    assert (manifest.counts["rejected"], manifest.counts["documents"]) == (5, 40)
    assert said == f"warning: 5 rejected; see {out / REJECTED}\n"


def follow(advice, source):
    """The file that the command in an error line makes of a source."""
    command = advice.replace("OLD", str(source))
    subprocess.run(command, shell=True, cwd=source.parent, stderr=subprocess.DEVNULL)
    return source.parent / command.rpartition("> ")[2]


def test_a_truncated_dump_is_refused_in_lines_that_lead_to_its_whole_pages(folder, tmp_path):
    packed = gzip.compress(dump_of(articles(250)))
    source, out = folder / "cut.xml.gz", tmp_path / "out"
    source.write_bytes(packed[: len(packed) * 2 // 3])
    line = refused(*shards_line(source, out))
    assert line.startswith(f"{source} is not whole: truncated or corrupt gz: ")
    unpacked = follow(line.rpartition("unpack what can be read of it: ")[2], source)
    line = refused(*shards_line(unpacked, out))
    assert f"{folder}/part-cut.xml is not whole: the dump is truncated after " in line
    assert leftovers(tmp_path) == []
    pages = follow(line.rpartition("keep its whole pages: ")[2], unpacked)
    manifest, said = build(pages, out)
    assert 50 < manifest.counts["documents"] < 200
    assert (manifest.counts["rejected"], said) == (0, "")


def test_the_beginning_of_a_truncated_file_is_read_once_it_is_unpacked(folder, tmp_path):
    packed = gzip.compress("".join(f'{{"text": "{GOOD} {i}."}}\n' for i in range(2000)).encode())
    (folder / "it's cut.jsonl.gz").write_bytes(packed[: len(packed) * 2 // 3])
    line = refused(*shards_line(folder / "it's cut.jsonl.gz", tmp_path))
    (folder / "cut.jsonl.gz").write_bytes(packed[: len(packed) * 2 // 3])
    assert line.endswith("""gzip -d -c OLD > 'part-it'"'"'s cut.jsonl'""")
    line = refused(*shards_line(folder / "cut.jsonl.gz", tmp_path))
    unpacked = follow(line.rpartition(": ")[2], folder / "cut.jsonl.gz")
    manifest, _ = build(unpacked, tmp_path)
    assert manifest.counts["documents"] > 100
    assert manifest.counts["rejected"] <= 1


def test_what_beam_refuses_is_one_line(folder, tmp_path):
    """In a process of its own, for Beam writes to the terminal itself and leaves."""
    line = shards_line(folder / "good.parquet", tmp_path / "out")
    done = clozeline(*line, "--", "--direct_num_workers=many")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "Error: Beam rejects the options after --: argument --direct_num_workers: invalid int "
        "value: 'many'."
    )
    assert "usage:" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("most", "step"), [(20_000, "Tokenize"), (100_000, "Examples")])
def test_where_no_more_can_be_written_nothing_is_half_written(most, step, folder, tmp_path):
    """A limit on the size of files stands for the full disk: a write fails in its middle."""
    out = tmp_path / "out"
    line = shards_line(folder / "good.parquet", out, "--num-shards=1", "--block-bytes=80000")
    with no_file_longer_than(most):
        said = refused(*line, code=1)
    assert f"File too large [while running '{step}']" in said
    assert said.endswith("rerun the command to continue.")
    assert leftovers(out) == []
    assert invoke(*line).exit_code == 0
    assert invoke("verify", out).exit_code == 0


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.name)
def test_a_fault_is_named_in_one_line(trial, whole, tmp_path, monkeypatch):
    folder = shutil.copytree(whole, tmp_path / "copy")
    trial.harm(folder)
    monkeypatch.chdir(folder)
    before = {path.name for path in folder.iterdir()}
    command = [part.replace("{nl}", "\n") for part in trial.command.split(" ")]
    result = invoke(*command)
    assert isinstance(result.exception, SystemExit), result.exception
    lines = [line for line in re.split(r"[\r\n]+", result.stderr) if line]
    others = re.compile(r"Usage:|Try |.*\[\d\d:\d\d")  # the last is a progress bar
    lines = [line for line in lines if not others.match(line)]
    assert len(lines) == 1, lines
    assert lines[0].startswith("Error: ")
    assert trial.line in lines[0]
    assert result.exit_code == trial.exit_code
    assert {path.name for path in folder.iterdir()} - before <= {"c", "out"}
    assert not (folder / "out" / MANIFEST).exists()


def test_a_misspelt_beam_option_names_the_nearest():
    known = ["--flink_master", "--parallelism"]
    assert _end(["--flink_mastr=a:1"], known=known) == "; did you mean --flink_master?"
    assert _end(["--something_else", "x"], known=known) == "."
