"""Without a compiler training still runs."""

from importlib.util import find_spec

import pytest
import torch

from clozeline.train.engine.compiler import missing_compiler, resolve_compile
from clozeline.train.engine.distributed import World

CPU, GPU = World(0, 1, torch.device("cpu")), World(0, 1, torch.device("cuda", 0))


@pytest.fixture
def no_compiler(tmp_path, monkeypatch):
    """A machine without any commands."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)


def test_without_a_compiler_a_warning_says_what_is_missing(no_compiler, capsys):
    assert resolve_compile(True, CPU) is False
    assert capsys.readouterr().err == (
        "warning: torch.compile needs a compiler (g++ or clang++), which is not installed; "
        "training runs without it, more slowly. Install it, or give --no-compile.\n"
    )
    assert resolve_compile(True, World(1, 2, torch.device("cpu"))) is False
    assert resolve_compile(None, GPU) is False
    assert capsys.readouterr().err.count("warning") == 1  # only rank 0 of the two


def test_nothing_is_missing_where_nothing_is_wanted(no_compiler, capsys):
    assert not any(resolve_compile(wanted, CPU) for wanted in (None, False))
    assert resolve_compile(False, GPU) is False
    assert capsys.readouterr().err == ""


def test_a_compiler_is_found_by_its_variable_or_its_name(tmp_path, no_compiler, monkeypatch):
    for name in ("my-compiler", "g++"):
        (tmp_path / name).touch(mode=0o755)
    assert resolve_compile(True, CPU) is True
    monkeypatch.setenv("CXX", "absent --flag")
    assert missing_compiler(torch.device("cpu")) == "a compiler (absent --flag)"
    monkeypatch.setenv("CXX", "my-compiler --flag")
    assert missing_compiler(torch.device("cpu")) is None


def test_a_gpu_also_needs_triton(tmp_path, no_compiler):
    (tmp_path / "gcc").touch(mode=0o755)
    wanted = None if find_spec("triton") else "the package triton"
    assert missing_compiler(torch.device("cuda")) == wanted
