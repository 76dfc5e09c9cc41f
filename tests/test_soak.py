"""The watch over long commands: all processes are counted, and the table has their medians."""

import subprocess
import sys

from tests.faults.soak import Sample, disk_use, sample, table, watch
from tests.support.small_jobs import ROOT

# A process with 40 MB and 20 open files that starts another of its kind; both end with their input.
CODE = """
import subprocess, sys
held, files = b"x" * 40_000_000, [open("/dev/null") for _ in range(20)]
if sys.argv[1:]:
    subprocess.Popen([sys.executable, "-c", sys.argv[1]])
print("ready", flush=True)
sys.stdin.read()
"""


def test_memory_files_and_threads_of_all_processes_are_summed(tmp_path):
    import psutil

    (tmp_path / "a").write_bytes(b"1" * 3_000_000)
    line = [sys.executable, "-c", CODE, CODE]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == b"ready\n"
        found = sample(psutil.Process(process.pid), tmp_path)
        process.stdin.close()
    assert found.megabytes > 80
    assert found.files >= 40
    assert found.threads >= 2
    assert found.disk == 3.0


def test_the_watch_ends_with_the_process(tmp_path):
    import psutil

    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        seen = psutil.Process(process.pid)
        process.communicate(b"\n")
    assert watch(seen, tmp_path, seconds=0.0) == []


def test_the_table_has_the_medians_of_each_tenth():
    samples = [Sample(100.0 + (i % 3 == 1) * 50, 7, i // 20, i) for i in range(40)]
    lines = table(samples)
    assert len(lines) == 11
    assert lines[1].split() == ["1", "100", "7", "0", "2"]
    assert lines[10].split() == ["10", "100", "7", "1", "38"]
    assert len(table(samples[:3])) == 4


def test_disk_use_counts_files_below_and_no_targets_of_links(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"12345")
    assert disk_use(tmp_path / "a") == 5


def test_a_process_that_is_not_there_is_one_line():
    line = [sys.executable, "-m", "tests.faults.soak", str(1 << 30), "."]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"Error: there is no process {1 << 30}\n")
