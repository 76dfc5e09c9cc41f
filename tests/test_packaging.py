"""The wheel: every sub-package and data file of the checkout is in it, and nothing else."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("clozeline", "pipeline", "model", "train")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, since a build leaves files beside the sources."""
    source, out = (tmp_path_factory.mktemp(name) for name in ("source", "wheel"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", str(out), str(source)], check=True)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    packed = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_an_installed_clozeline_needs_no_checkout(wheel, tmp_path):
    """Text that is generated from package data, in a process that sees only the wheel's files."""
    ZipFile(wheel).extractall(tmp_path)
    (entry_points,) = tmp_path.glob("*.dist-info/entry_points.txt")
    assert "clozeline = clozeline.__main__:run" in entry_points.read_text()
    command = ["tokenizer", "sample:articles?size=20KB", "sample:reviews?rows=20"]
    subprocess.run(
        [sys.executable, "-m", "clozeline", *command, "--vocab-size", "300", "--out", "tokenizer"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=True,
    )
    assert len((tmp_path / "tokenizer" / "vocab.txt").read_text().splitlines()) == 300


def pins(lock: str) -> dict[str, str]:
    """Name to version of a lock file."""
    lines = (ROOT / lock).read_text().splitlines()
    return {canonical(n): v for n, _, v in (line.partition("==") for line in lines) if v}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def release(version: str) -> tuple[int, ...]:
    """ "2.70" and "2.70.0" are one version."""
    numbers = [int(part) for part in version.split(".") if part.isdecimal()]
    return tuple(numbers + [0] * (4 - len(numbers)))


def test_the_oldest_versions_allowed_are_those_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    floors = dict(line.split(">=") for group in groups for line in group if ">=" in line)
    tested, newest = pins("requirements-min.lock"), pins("requirements.lock")
    assert floors.pop("torch") == "2.11"  # tested elsewhere; the list has the newest
    floors.pop("setuptools")  # builds the wheel; no part of what is installed
    assert len(floors) >= 25
    for name, floor in floors.items():
        assert release(tested[canonical(name)]) == release(floor), name
        assert release(newest[canonical(name)]) >= release(floor), name
