"""`make gpu`: the tests that need a GPU and the table of speeds, in one file to hand in.

    python tests/benchmarks/gpu_report.py OUT.md [--dry-run]

The file grows with each row, so a machine that is taken away leaves what it had measured. A dry run
has the CPU in the GPU's place and shows that everything but the GPU is ready. Exits with 1 where a
test or the table failed; the file is written all the same.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TextIO
from xml.etree import ElementTree

import torch

ROOT = Path(__file__).parents[2]
SPEED = "tests/benchmarks/training_speed.py"
OUTCOMES = {"failure": "failed", "error": "failed", "skipped": "skipped"}


def run(*words: str, is_dry: bool, copy: TextIO | None = None) -> tuple[int, str]:
    """The exit code and the standard output, which is shown and written to `copy` as well."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment |= {"CLOZELINE_DRY_RUN": "1"} if is_dry else {}
    lines = []
    with subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
            if copy:
                print(line, end="", file=copy, flush=True)
    return process.returncode, "".join(lines)


def rows_of(results: Path) -> Iterator[str]:
    """A row for each test: its name, outcome and seconds, and why it failed."""
    for case in ElementTree.parse(results).iter("testcase"):
        outcome, why = "passed", ""
        for part in case:
            if part.tag in OUTCOMES:
                outcome, why = OUTCOMES[part.tag], part.get("message", "")
        reason = why.partition("\n")[0][:120].replace("|", "/")
        yield f"| {case.get('name')} | {outcome} | {float(case.get('time', 0)):.1f} | {reason} |"


def heading(is_dry: bool) -> list[str]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    ).stdout.strip()
    return [
        f"# {'Dry run of make gpu' if is_dry else 'make gpu'}",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, {device} x {torch.cuda.device_count()}, torch "
        f"{torch.__version__}, commit {commit or 'not known'}",
        "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    is_dry = given.dry_run
    files = [str(p) for p in sorted(ROOT.glob("tests/*/test_*.py")) if "mark.gpu" in p.read_text()]
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch, "results.xml")
        options = ["-q", "-rs", "-p", "no:cacheprovider", "-m", "gpu", f"--junitxml={results}"]
        if find_spec("xdist"):
            options += ["-n", str(min(6, os.cpu_count() or 1)), "-p", "no:benchmark"]
        tested, _ = run("-m", "pytest", *options, *files, is_dry=is_dry)
        rows = sorted(rows_of(results)) if results.exists() else []
    options = ["--device", "cuda", "--rounds", "2", *["--dry-run"] * is_dry]
    tests = ["| test | outcome | seconds | why |", "|---|---|---:|---|", *rows, ""]
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with given.out.open("w") as file:
        print(*heading(is_dry), *tests, sep="\n", file=file, flush=True)
        measured, table = run(SPEED, *options, is_dry=is_dry, copy=file)
    print(f"\n{given.out.read_text()}\nwritten to {given.out}; hand in this file")
    return int(bool(tested or measured or "failed:" in table))


if __name__ == "__main__":
    sys.exit(main())
