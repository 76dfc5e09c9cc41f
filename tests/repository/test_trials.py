"""Benchmarks and trials are out of `make test`, but for a small run of each that can fail."""

import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozeline.pipeline.common.errors import InputError
from tests.faults.engines import ENGINES
from tests.faults.mutations import mutate
from tests.faults.network_hosts import unshare_command
from tests.faults.slurm_cluster import check_programs
from tests.fuzz import targets
from tests.fuzz.targets import CONFIG, MODERN, RULES, TARGETS, as_json, tokenizer_bytes
from tests.support.small_jobs import ROOT, python

SCRIPTS = sorted(
    path
    for path in Path(__file__).parents[1].glob("*/*.py")
    if path.parent.name in ("benchmarks", "faults") and path.name != "__init__.py"
)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_imports_what_exists(path):
    """From the project: other packages are installed by those who run it."""
    tree, roots = ast.parse(path.read_text()), ("clozeline.", "tests.")
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    tree.body = [node for node in froms if (node.module or "").startswith(roots)]
    exec(compile(tree, path, "exec"), {})


#: Those of `make bench`: arguments with which each takes a short time, the figure of its result,
#: and between what it lies on any machine unless the benchmark or what it measures is broken.
SMALL: dict[str, tuple[tuple[object, ...], str, float, float]] = {
    "cpu_kernels_speed": (("--rounds", 1), r"cross-entropies +float32, MB .* ([\d.]+) x", 1.5, 6),
    "job_cost": (("3MB",), r"3MB +2 this +3 +[\d.]+ +[\d.]+ +([\d.]+) ", 0.05, 2),
    "loader_speed": ((50_000,), r"datasets, map style .* ([\d.]+) x ", 5, 1000),
    "many_slices": (("20x10",), r"20x10 +(\d+) ", 200, 200),
    "markup_speed": (("--worst",), r"^ +([\d.]+) .* bytes of ", 0.05, 60),
    "near_duplicates_speed": (("--megabytes", 5), r"^0.85 or more .* ([\d.]+)%$", 99, 100),
    "pipeline_speed": ((0.5,), r"^clozeline, .* ([\d.]+)$", 1.5, 100),
    "rank_balance": ((1500,), r"^ .* ([\d.]+)$", 1, 1.03),
    "sentences_speed": ((0.2,), r"MB/s CPU, ([\d.]+) times; again", 2, 200),
    "template_holes": ((), r"^English .* ([\d.]+) per 1,000$", 10, 40),
    "tokens_speed": ((1,), r"^ours .* ([\d.]+) x$", 1.5, 60),
    "training_speed": (("bert-mini", "--rounds", 1), r"transformers.* ([\d.]+) x$", 0.5, 20),
}  # fmt: skip


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_every_benchmark_of_make_bench_runs_on_little():
    """One that needs an argument would end `make bench`."""
    make = ["make", "--no-print-directory", "-n", "bench"]
    plan = subprocess.run(make, cwd=SCRIPTS[0].parents[2], check=True, capture_output=True)
    assert set(re.findall(r"benchmarks/(\w+)\.py", plan.stdout.decode())) == set(SMALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_gives_its_figure_in_the_range_that_it_has_everywhere(name):
    arguments, figure, low, high = SMALL[name]
    printed = python(f"tests/benchmarks/{name}.py", *arguments)
    assert all(line.isprintable() for line in printed.splitlines())
    found = [float(value) for value in re.findall(figure, printed, re.M)]
    assert found, printed
    assert all(low <= value <= high for value in found), printed


def trial(module: str, *words: object) -> list[str]:
    """The lines that a trial prints; it is skipped where namespaces of Linux are missing."""
    try:
        unshare_command()
    except InputError as error:
        pytest.skip(str(error))
    return python("-m", f"tests.faults.{module}", *words).splitlines()


@pytest.mark.slow
def test_five_hundred_mutations_are_named_or_harmless(tmp_path):
    line = ("-m", "tests.faults.torture", "--trials=500", "--seed=1")
    assert "500 tried: " in python(*line, f"--out={tmp_path}").splitlines()[-1]


@pytest.mark.slow
def test_a_host_that_was_killed_or_replaced_returns_and_training_ends_with_the_same_bytes(tmp_path):
    only = "kill -9 of host-b$|SIGTERM of host-b, with restarts"
    _, _, undisturbed, killed, replaced = trial("hosts", "--out", tmp_path, "--only", only)
    assert undisturbed.endswith(" | the same |")
    assert 'host-a prints "process 1 on host-b stopped answering" after' in killed
    assert killed.endswith("; host-b starts again, and both continue | the same |")
    assert "checkpoint saved" in replaced
    assert replaced.endswith("; host-b starts again, and both continue | the same |")


@pytest.mark.slow
def test_a_requeued_job_of_slurm_trains_to_the_same_bytes(tmp_path):
    try:
        check_programs()
    except InputError as error:
        pytest.skip(str(error))
    *_, row = trial("slurm", "--out", tmp_path / "slurm", "--only", "scontrol requeue$")
    assert row.startswith("| pretraining: scontrol requeue | requeued ")
    assert row.endswith(" | the same |")


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*(engine.name for engine in ENGINES), "prism"])
def test_an_engine_writes_the_bytes_of_a_local_job(engine):
    cache = Path(os.environ.get("CLOZELINE_ENGINES", ROOT / "work" / "engines"))
    if not (cache / ("prism" if engine == "prism" else f"{engine}/jars")).exists():
        pytest.skip(f"{cache} does not have {engine}: `make engines` fetches it")
    rows = [line.split() for line in trial("engines", "--cache", cache, "--only", engine)[1:]]
    names = ["local", engine, f"{engine}-no-cache"]
    assert [(row[0], row[-1]) for row in rows] == [(name, "same") for name in names]


@pytest.mark.slow
def test_a_dry_run_of_the_gpu_tests_ends_in_one_file(tmp_path):
    """What is left for a GPU is to run them; mistakes in them are found without one."""
    report = ["tests/benchmarks/gpu_report.py", str(tmp_path / "gpu.md"), "--dry-run"]
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, *report], cwd=root, check=True, stdout=subprocess.DEVNULL)
    text = (tmp_path / "gpu.md").read_text()
    assert text.count("| passed |") > 30
    assert "| failed |" not in text
    assert "H100: " in text


# --- The targets of `make fuzz` without the fuzzer: seeds, a few mutations, and what it found -----


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each call to a parser, whether it refused."""
    found: list[bool] = []
    call = targets.refused_in_one_line

    def recorded(read: Callable[[], Any]) -> Any:
        result = call(read)
        found.append(result is None)
        return result

    monkeypatch.setattr(targets, "refused_in_one_line", recorded)
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_accepts_its_seeds_and_survives_mutations(name: str, refusals: list[bool]) -> None:
    target = TARGETS[name]()
    for seed in target.seeds:
        refusals.clear()
        target.run(seed)
        assert not any(refusals)
        for number in range(12):
            target.run(mutate(seed, random.Random(number)).data)
            if name.endswith(".json"):
                changed = targets.mutate_json(seed, number)
                assert changed is not None
                target.run(changed)


FOUND = (
    ("punkt.json", as_json(RULES.to_json() | {"collocations": [5]})),
    ("punkt.json", as_json({"la\nguage": 2})),
    ("punkt.json", as_json(RULES.to_json() | {"ortho_context": {"he": "x"}})),
    ("config.json", as_json(MODERN | {"rope_parameters": 7})),
    ("config.json", as_json(MODERN | {"layer_types": ["sliding_attention"] * 200_000})),
    ("config.json", as_json(CONFIG | {"num_hidden_layers": 10**30})),
    ("csv", b"text\xfa,label\na,b\n"),
    ("csv", b'\r\nz"nOebelr\x02\xfaa\nz"n\x86\n'),
    ("csv", b"text,\x1dabel\nOne,a\n"),
    ("tokenizer.json", as_json(json.loads(tokenizer_bytes()) | {"added_tokens": 5})),
)


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_the_fuzzer_found_is_refused(name: str, data: bytes, refusals: list[bool]) -> None:
    TARGETS[name]().run(data)
    assert any(refusals)


def test_lines_that_are_no_json_are_rejected_alike_in_blocks_of_any_size() -> None:
    TARGETS["jsonl"]().run(b'{"text": "a"\n }\n{"text": "a"\n }\n')


def test_a_tar_member_without_a_record_batch_is_named(refusals: list[bool]) -> None:
    target = TARGETS["tar"]()
    seed = target.seeds[0]
    for at in range(512, len(seed), 97):  # inside of the member
        target.run(seed[:at] + b"\0\0\0\0" + seed[at + 4 :])
    assert any(refusals)


def test_no_length_in_an_arrow_shard_is_taken_without_a_check(refusals: list[bool]) -> None:
    target = TARGETS["arrow"]()
    seed = target.seeds[0]
    for at in range(0, len(seed) - 4, 4):
        target.run(seed[:at] + b"\xff\xff\xff\xff" + seed[at + 4 :])
    assert any(refusals)
