"""Kernels of a compiled step, written and compiled for GPUs on a machine without one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = "tests/benchmarks/kernel_counts.py"

pytest.importorskip("triton")


def rows(*words):
    """What the script prints for each case: kernels, calls, operations, MB; and the rest."""
    line = [sys.executable, SCRIPT, *words]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"^(.*?) +(\d+) +(\d+) +(\d+) +([\d.]+) *(.*)$", done.stdout, re.M)
    return {name: ([float(x) for x in numbers], rest) for name, *numbers, rest in found}


@pytest.mark.slow
def test_every_kernel_of_a_step_compiles_for_three_generations_of_gpus():
    [(numbers, rest)] = rows("modern", "--targets=80,90,100").values()
    assert numbers[0] > 0
    assert re.fullmatch(r"\d+ sources for \[80, 90, 100\]: [\d,]+ bytes", rest)


@pytest.mark.slow
def test_logits_of_masked_positions_alone_move_less_memory():
    few, all_ = rows("bert", "bert, logits of all positions").values()
    assert few[0][3] < all_[0][3]
    assert few[0][0] == all_[0][0]
