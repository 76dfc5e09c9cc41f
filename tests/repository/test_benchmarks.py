"""Benchmarks and trials import names that exist; benchmarks that take a size run on little."""

import ast
import re
import shutil
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.gpu_report import rows_of
from tests.support.small_jobs import python

SCRIPTS = sorted(
    path
    for path in Path(__file__).parents[1].glob("*/*.py")
    if path.parent.name in ("benchmarks", "faults") and path.name != "__init__.py"
)


def ours(path: Path) -> list[tuple[str, str]]:
    """(module, name) of what a file imports from the project."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        if node.module.partition(".")[0] in ("clozeline", "tests")
        for alias in node.names
    ]


def exists(module: str, name: str) -> bool:
    """As `from module import name` finds it: what it defines, or a module of a package."""
    found = import_module(module)
    is_module = hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None
    return is_module or hasattr(found, name)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_imports_what_exists(path):
    assert [f"{m}.{name}" for m, name in ours(path) if not exists(m, name)] == []


#: Those of `make bench`, with arguments with which each takes a short time.
SMALL = {
    "checkpoint_stall": ("--preset", "bert-tiny", "--rounds", 1),
    "cpu_kernels_speed": ("--rounds", 1),
    "estimate_memory": ("bert-tiny",),
    "kernel_counts": ("bert",),
    "last_layer_speed": ("bert-tiny:2x16:3", "--rounds", 1),
    "loader_speed": (50_000,),
    "many_slices": ("20x10",),
    "markup_speed": ("--worst",),
    "memory_use": ("3MB",),
    "near_duplicates_speed": ("--synthetic", 2000),
    "pipeline_speed": (0.5,),
    "sampled_words_speed": ("bert-tiny:2x16:3:500:100", "--rounds", 1),
    "sentences_icu": (),
    "sentences_speed": (0.2,),
    "tokens_speed": (4,),
    "training_speed": ("bert-mini", "--rounds", 1),
    "word_vectors_speed": (),
}


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_every_benchmark_of_make_bench_runs_on_little():
    """One that needs an argument would end `make bench`."""
    make = ["make", "--no-print-directory", "-n", "bench"]
    plan = subprocess.run(make, cwd=SCRIPTS[0].parents[2], check=True, capture_output=True)
    assert set(re.findall(r"benchmarks/(\w+)\.py", plan.stdout.decode())) == set(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_ends_in_numbers(name):
    lines = python(f"tests/benchmarks/{name}.py", *SMALL[name]).splitlines()
    assert all(line.isprintable() for line in lines)
    assert any(character.isdecimal() for character in lines[-1])


def test_a_row_has_a_tests_outcome_and_the_first_line_of_its_reason(tmp_path):
    (tmp_path / "results.xml").write_text(
        """<testsuites><testsuite>
        <testcase name="good" time="1.25"/>
        <testcase name="bad[a]" time="0"><failure message="a | b&#10;and more"/></testcase>
        <testcase name="left" time="0"><skipped message="needs two"/></testcase>
        </testsuite></testsuites>"""
    )
    assert list(rows_of(tmp_path / "results.xml")) == [
        "| good | passed | 1.2 |  |",
        "| bad[a] | failed | 0.0 | a / b |",
        "| left | skipped | 0.0 | needs two |",
    ]


@pytest.mark.slow
def test_a_dry_run_of_the_gpu_tests_ends_in_one_file(tmp_path):
    """What is left for a GPU is to run them; mistakes in them are found without one."""
    report = ["tests/support/gpu_report.py", str(tmp_path / "gpu.md"), "--dry-run"]
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, *report], cwd=root, check=True, stdout=subprocess.DEVNULL)
    text = (tmp_path / "gpu.md").read_text()
    assert text.count("| passed |") > 30
    assert "| failed |" not in text
    assert "H100: " in text
