"""The wheel holds every file of the packages, and an extra that is missing is named."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from functools import partial
from zipfile import ZipFile

import pytest
import yaml

from clozeline.pipeline.common.packages import EXTRAS
from tests.support.small_jobs import ROOT, python

PACKAGES = ("clozeline", "pipeline", "model", "train")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: No network, and the setuptools that are installed.
OFFLINE = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def output(*words, python=sys.executable, code=0, **options):
    done = subprocess.run([python, *words], capture_output=True, text=True, **options)
    assert done.returncode == code, done.stderr
    return done.stdout


def built(kind, source, out):
    """What setuptools builds: an "sdist" or the wheel of an "editable" install."""
    code = f"from setuptools.build_meta import build_{kind} as b; print(b({str(out)!r}))"
    return out / output("-c", code, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy, since a build leaves files beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored, symlinks=True)
    return source


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run([*PIP, "wheel", *OFFLINE, "--wheel-dir", out, source], check=True)
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    packed = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert "clozeline/py.typed" in packed
    assert packed == {
        f"{'' if package == 'clozeline' else 'clozeline/'}{path.relative_to(ROOT).as_posix()}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def install(wheel, folder, *, cwd):
    """A function that runs a program of an environment that has nothing but the wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    subprocess.run([*PIP, "--python", folder, "install", *OFFLINE, wheel], check=True)
    libraries = sysconfig.get_path("purelib")  # the dependencies, which are not installed again
    environment = {**os.environ, "PYTHONPATH": libraries}

    def run(program, *words):
        return output(*words, python=folder / "bin" / program, cwd=cwd, env=environment)

    return run


#: What nearly every project in this field has in its own folder.
STRANGERS = ("train.py", "pipeline.py", "model/__init__.py")
#: Every Python name, the help of every command, and text that is generated from package data.
EVERYTHING = """
import contextlib, io, sys
import clozeline
for name in clozeline.__dir__():
    getattr(clozeline, name)
from clozeline.train.cli import main
learn = ["tokenizer", "sample:articles?size=20KB", "sample:reviews?rows=20", "--out=tokenizer"]
with contextlib.redirect_stdout(io.StringIO()):
    for name in main.commands:
        main([name, "--help"], standalone_mode=False)
    main([*learn, "--vocab-size=300"], standalone_mode=False)
print(clozeline.__file__.startswith(sys.prefix), {"model", "pipeline", "train"} & {*sys.modules})
"""


def test_the_installed_wheel_needs_no_checkout_and_stands_beside_other_peoples_modules(
    wheel, tmp_path
):
    work = tmp_path / "work"
    for name in STRANGERS:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("raise SystemExit('a stranger')")
    run = install(wheel, tmp_path / "venv", cwd=work)
    assert run("clozeline", "--version") == f"clozeline {PROJECT['version']}\n"
    assert run("python", "-c", EVERYTHING) == "True set()\n"
    assert len((work / "tokenizer" / "vocab.txt").read_text().splitlines()) == 300


@pytest.mark.slow
def test_sdist_and_wheel_install_into_an_empty_environment(source, wheel, tmp_path):
    """From the sdist a wheel with the same files; the installed commands use their package data."""
    sdist = built("sdist", source, tmp_path)
    subprocess.run([*PIP, "wheel", *OFFLINE, "--wheel-dir", tmp_path / "w", sdist], check=True)
    (again,) = (tmp_path / "w").glob("*.whl")
    assert sorted(ZipFile(again).namelist()) == sorted(ZipFile(wheel).namelist())

    clozeline = partial(install(again, tmp_path / "venv", cwd=tmp_path), "clozeline")
    source = "sample:articles?size=20KB"
    clozeline("tokenizer", source, "--vocab-size", "300", "--out", "tokenizer")
    clozeline("shards", source, "--tokenizer", "tokenizer", "--out", "shards", "--workers", "1")
    assert "report.html" in clozeline("report", "shards")  # from templates and style sheets


def test_an_editable_install_is_a_path_that_editors_and_mypy_follow(source, tmp_path):
    """No import hook, so a module that is added later is found, too, and so are its types."""
    with ZipFile(built("editable", source, tmp_path)) as built_wheel:
        packed = {name for name in built_wheel.namelist() if ".dist-info/" not in name}
        (path,) = packed
        assert path.endswith(".pth")
        assert built_wheel.read(path).decode().strip() == str(source)
    (source / "train" / "added.py").write_text("ADDED: int = 'of another type'\n")
    variables = {**os.environ, "PYTHONPATH": str(source), "MYPYPATH": str(source)}
    code = "from clozeline.train.added import ADDED; print(ADDED)"
    types = ("mypy", "--follow-imports=skip", "-m", "clozeline.train.added")
    try:
        printed = output("-c", code, cwd=tmp_path, env=variables)
        found = output("-m", *types, cwd=tmp_path, env=variables, code=1)
    finally:
        (source / "train" / "added.py").unlink()
    assert printed == "of another type\n"
    assert "added.py:1: error: Incompatible types in assignment" in found


def test_the_citation_has_the_version_and_the_licence_of_the_project():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_link_to_the_repository_leads_to_what_is_there():
    urls = PROJECT["urls"]
    home = urls["Homepage"]
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["repository-code"] == home
    files = [ROOT / name for name in ("pyproject.toml", "SECURITY.md", "docs/mkdocs.yml")]
    files += [*ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"), *ROOT.glob("deploy/*.Dockerfile")]
    text = "\n".join(path.read_text() for path in files)
    links = re.findall(r"https://github\.com/[^\s\")]+", text)
    assert len(links) >= 10
    for link in links:
        assert link.startswith(home)
        kind, _, path = link.removeprefix(home).strip("/").partition("/")
        assert kind in ("", "blob", "issues", "security")
        assert kind != "blob" or (ROOT / path.removeprefix("main/")).is_file()


def test_ci_runs_the_tests_with_each_python_and_what_is_installed_and_may_only_read():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    assert set(workflow[True]) == {"push", "pull_request"}, "YAML reads the key `on` as True"
    check, installed = workflow["jobs"]["check"], workflow["jobs"]["installed"]
    versions = check["strategy"]["matrix"]["python-version"]
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert versions == named
    assert PROJECT["requires-python"] == f">={versions[0]}"
    steps = check["steps"] + installed["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", name) for name in used)
    assert [step["run"] for step in steps if "run" in step] == [
        ".ci/run", "make test-installed", "make test-minima",
    ]  # fmt: skip
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


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
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    floors = dict(line.split(">=") for group in groups for line in group if ">=" in line)
    tested, newest = pins("requirements-min.lock"), pins("requirements.lock")
    assert floors.pop("torch") == "2.11"  # tested elsewhere; the list has the newest
    extra = pins("requirements-extra.lock")
    assert not extra.keys() & newest.keys()
    assert "lightning" in extra
    floors.pop("setuptools")  # builds the wheel; no part of what is installed
    assert len(floors) >= 25
    for name, floor in floors.items():
        assert release(tested[canonical(name)]) == release(floor), name
        assert release(newest[canonical(name)]) >= release(floor), name


# --- Without the packages of the extras, every command works or names its extra in one line -------

#: Prints exit code and messages of each command line, and what Python functions raise.
BLOCKED = f"""
import json, sys
sys.modules.update(dict.fromkeys({list(EXTRAS)}))
from click.testing import CliRunner
from clozeline.train.cli import main
done = [CliRunner().invoke(main, line.split()) for line in sys.argv[1:]]
import clozeline
from clozeline import InputError
calls = (
    lambda: clozeline.make_tokenizer("sample:articles", out="a", vocab_size=500),
    lambda: clozeline.build_shards("sample:articles", tokenizer="a", out="b"),
    lambda: list(clozeline.verify("b", "sample:articles")),
)
raised = []
for call in calls:
    try:
        call()
    except InputError as error:
        raised.append(str(error))
print(json.dumps([*((each.exit_code, each.stderr) for each in done), raised]))
"""

#: Command lines, and the extra that each needs; {} is the folder `whole`.
LINES = {
    "tokenizer {}/text.txt --vocab-size 500 --out {}/more": "pipeline",
    "shards {}/text.txt --tokenizer {}/tokenizer --out {}/more": "pipeline",
    "shards hf://imdb --tokenizer {}/tokenizer --out {}/more": "pipeline",
    "verify {}/data --source {}/text.txt": "pipeline",
    "inspect {}/data": None,
    "report {}/data": "pipeline",
    "view {}/data": "pipeline",
    "baseline {}/rows.csv --test {}/rows.csv": "baseline",
    "predict {}/classifier cat": None,
    "export {}/run --format onnx --out {}/onnx": "onnx",
}


def test_a_missing_package_is_one_line_with_its_extra(whole):
    lines = [line.replace("{}", str(whole)) for line in LINES]
    *printed, raised = json.loads(python("-c", BLOCKED, *lines))
    ending = "which is not installed; run `pip install 'clozeline[{}]'`."
    assert [text.endswith(ending.format("pipeline")) for text in raised] == [True] * 3, raised
    for (code, said), (line, extra) in zip(printed, LINES.items(), strict=True):
        assert code == (2 if extra else 0), (line, said)
        if extra:
            last = said.splitlines()[-1]
            assert last.startswith("Error: "), line
            assert last.endswith(ending.format(extra))


def test_the_extras_are_those_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = {"sklearn": "scikit-learn"}
    for package, extra in EXTRAS.items():
        names = [entry.partition(">")[0] for entry in extras[extra]]
        assert named.get(package, package.replace("_", "-")) in names, package
