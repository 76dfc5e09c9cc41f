"""The wheel: every sub-package and data file of the checkout is in it, and nothing else."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

ROOT = Path(__file__).parent.parent
PACKAGES = ("clozeline", "pipeline", "model", "train")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy, since a build leaves files beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored)
    return source


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
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


@pytest.mark.slow
def test_sdist_and_wheel_install_into_an_empty_environment(source, wheel, tmp_path):
    """From the sdist a wheel with the same files; the installed command generates text."""
    build = "from setuptools.build_meta import build_sdist as b; import sys; print(b(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(tmp_path)]
    made = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    sdist = tmp_path / made.stdout.splitlines()[-1]
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    offline = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
    subprocess.run([*pip, "wheel", *offline, "--wheel-dir", tmp_path / "w", sdist], check=True)
    (again,) = (tmp_path / "w").glob("*.whl")
    assert sorted(ZipFile(again).namelist()) == sorted(ZipFile(wheel).namelist())

    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    subprocess.run([*pip, "--python", venv, "install", *offline, again], check=True)
    libraries = sysconfig.get_path("purelib")  # the dependencies, which are not installed again
    line = ["tokenizer", "sample:articles?size=20KB", "--vocab-size", "300", "--out", "tokenizer"]
    subprocess.run(
        [venv / "bin" / "clozeline", *line],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": libraries},
        check=True,
    )
    assert (tmp_path / "tokenizer" / "vocab.txt").exists()
    where = "import train, sys; print(train.__file__.startswith(sys.prefix))"
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    python = venv / "bin" / "python"
    found = subprocess.run([python, "-c", where], capture_output=True, cwd=tmp_path, env=alone)
    assert found.stdout == b"True\n"


def test_every_package_is_typed(wheel):
    names = ZipFile(wheel).namelist()
    assert [name for name in PACKAGES if f"{name}/py.typed" not in names] == []


def test_the_citation_has_the_version_and_the_licence_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda p: p.stem)
def test_a_form_for_issues_is_one_that_github_reads(path):
    form = yaml.safe_load(path.read_text())
    if path.stem == "config":
        assert form == {"blank_issues_enabled": True}
        return
    assert {"name", "description", "body"} <= set(form)
    assert {field["type"] for field in form["body"]} <= {"textarea", "input"}
    assert all(field["attributes"]["label"] for field in form["body"])


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
    for name in ("wandb", "mlflow-skinny"):  # tested where they are installed
        floors.pop(name)
    floors.pop("setuptools")  # builds the wheel; no part of what is installed
    assert len(floors) >= 25
    for name, floor in floors.items():
        assert release(tested[canonical(name)]) == release(floor), name
        assert release(newest[canonical(name)]) >= release(floor), name
