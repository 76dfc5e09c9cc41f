"""The Makefile: stale stages run again, differing values are reported, and nothing deletes data."""

import os
import re
import shlex
import shutil
import subprocess
from contextlib import chdir
from pathlib import Path

import pytest

from tests.support.command import output_of, refused
from tests.support.files import times

ROOT = Path(__file__).parents[2]
STAGES = ["tokenizer", "shards", "pretrain", "finetune", "export"]
#: Small values, kept in the file in which users keep theirs.
VALUES = """
SOURCE := "sample:articles?size=60KB" "sample:reviews?rows=60"
TRAIN := "sample:reviews?rows=40&start=1000"
TEST := "sample:reviews?rows=20&start=2000"
VOCAB := 400
LENGTH := 32
PRESET := bert-tiny
STEPS := 2
WORKERS := 1
FINETUNE_OPTIONS := --learning-rate 1e-3 --epochs 1 --no-baseline
"""
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
#: A value that this test's own `make` was given would be another project's: `VENV`, to be removed.
OUR_VARIABLES = re.findall(r"^(\w+) *\?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
ENVIRONMENT = {name: x for name, x in os.environ.items() if name not in OUR_VARIABLES}


def make(project, *words, code=0):
    """What make prints; each stage does nothing and ends with the code."""
    done = subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=project,
        env={**ENVIRONMENT, "MAKEFLAGS": "", "CODE": str(code)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def commands(project, *words):
    """The words of each command of clozeline that make would run."""
    plan = make(project, "-n", *words).replace("\\\n", " ")
    lines = re.findall(r"^\.venv/bin/clozeline (.*)$", plan, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def planned(project, *words):
    return [line[0] for line in commands(project, *words)]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A copy of the Makefile, and every stage done by its command, in this process."""
    folder = tmp_path_factory.mktemp("make")
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("requirements.lock", "pyproject.toml"):
        (folder / name).touch()
    (folder / "clozeline.mk").write_text(VALUES)
    program = folder / ".venv" / "bin" / "clozeline"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit $CODE\n")
    program.chmod(0o755)
    (folder / ".venv" / "ready").touch()
    lines = commands(folder, "finetune", "export")
    assert [name for name, *_ in lines] == STAGES
    (folder / "work").mkdir()
    make(folder, "finetune")  # writes down the values
    with chdir(folder):
        for line in lines:
            output_of(*line)
    assert (folder / "work" / "run-huggingface" / "model.safetensors").exists()
    return folder


@pytest.fixture
def project(original, tmp_path):
    return shutil.copytree(original, tmp_path / "project", symlinks=True)


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ("WORKERS=1", []),  # as before
        ("WORKERS=2", []),
        ("SOURCE=sample:articles?size=70KB", STAGES),
        ("VOCAB=500", STAGES),
        ("LENGTH=64", STAGES[1:]),
        ("PRESET=bert-mini", STAGES[2:]),
        ("STEPS=3", STAGES[2:]),
        ("HOURS=1", STAGES[2:]),
        ("SHARDS_OPTIONS=--pairs none", STAGES[1:]),
        ("PRETRAIN_OPTIONS=--dropout 0", STAGES[2:]),
        ("FINETUNE_OPTIONS=--seeds 2", ["finetune"]),
        ("RUN=work/other", STAGES[2:]),
        ("TRAIN=sample:reviews?rows=50", ["finetune"]),
        ("WORK=elsewhere", STAGES),
    ],
)
def test_a_changed_value_reaches_the_stages_that_depend_on_it(original, change, stages):
    assert planned(original, "finetune", "export", change) == stages


def test_a_command_says_what_differs_and_leaves_the_folder(project):
    before, words = times(project / "work"), ("pretrain", "PRESET=bert-mini")
    (line,) = commands(project, *words)
    with chdir(project):
        assert "hidden_size 128 there, 256 now" in refused(*line)
    said = make(project, *words, code=2)
    assert "the values of work/run were PRESET=bert-tiny STEPS=2" in said
    assert re.search(
        r"now they are PRESET=bert-mini STEPS=2.*\(OVERWRITE=1 replaces work/run\)", said
    )
    assert times(project / "work") == before
    assert planned(project, "finetune", "export") == [], "the old values are still those of the run"


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (("shards", "VOCAB=500", "OVERWRITE=1"), dict.fromkeys(STAGES[:2], "--overwrite")),
        (("shards", "LENGTH=64", "OVERWRITE=1"), {"shards": "--overwrite"}),
        (("pretrain", "STEPS=3"), {"pretrain": "--resume --preset bert-tiny --max-steps 3"}),
        (("pretrain", "HOURS=2"), {"pretrain": "--resume --preset bert-tiny --for 2h"}),
    ],
)  # fmt: skip
def test_overwrite_replaces_a_folder_and_more_steps_continue_a_run(original, words, taken):
    """Each option reaches the commands that it is for; they are tested elsewhere."""
    lines = {line[0]: " ".join(line) for line in commands(original, *words)}
    assert list(lines) == list(taken)
    for name, options in taken.items():
        assert options in lines[name]
        assert ("--overwrite" in lines[name]) == ("OVERWRITE=1" in words)


def test_clean_and_distclean_leave_the_work(project):
    work = times(project / "work")
    names = ("pipeline", "model", "train", "tests")
    caches = [project / name / "__pycache__" for name in names] + [project / ".mypy_cache"]
    for folder in (*caches, project / ".venv-minima"):
        folder.mkdir(parents=True)
    (project / ".venv" / "work").symlink_to(project / "work")
    make(project, "clean")
    assert not any(cache.exists() for cache in caches)
    assert (project / ".venv" / "ready").exists()
    make(project, "distclean")
    assert not list(project.glob(".venv*"))
    assert times(project / "work") == work, "perhaps a link was followed"
    assert (project / "clozeline.mk").exists()


def test_help_lists_every_target(original):
    targets = [line.split()[0] for line in make(original, "help").splitlines()]
    phony = re.findall(r"^\.PHONY: (.*)$", (original / "Makefile").read_text(), re.MULTILINE)
    assert targets[0] == "help"
    assert {*STAGES} < {*targets} == {name for line in phony for name in line.split()}


def test_the_ladder_is_planned_on_each_data_set(original):
    """Text without labels to pretrain on, then a curve of labels for each classifier."""
    plan = make(original, "-n", "ladder", "CLOZELINE_DATA=/data", "HOURS=2", "LABELS=100,all")
    wiki, test = '"/data/wikipedia/train-*.parquet"', '"/data/amazon_polarity/test-*.parquet'
    amazon, imdb = '"/data/amazon_polarity/train-*.parquet', '"/data/imdb/train-*.parquet'
    text = f"{amazon}?text=title,content"
    for words in (
        f'clozeline tokenizer {wiki} {text}" {imdb}"',
        f'{wiki} {text}&repeat=2" {imdb}?repeat=2" --out work/ladder/mixed',
        f'{text}" {imdb}" --out work/ladder/reviews',
        f'--exclude {test}?text=title,content" --exclude "/data/imdb/test-*.parquet"',
        '--exclude "/data/sst2/validation-*.parquet?text=sentence"',
        "pretrain work/ladder/mixed --out work/ladder/run-2h",
        "--preset nano --dropout 0 --for 2h --resume",
        "--from work/ladder/run-2h --dropout 0 --for $(( 2 * 30 ))m",
        "finetune work/ladder/run-2h-reviews --from-scratch --resume --label-efficiency 100,all",
        f'{amazon}" --test {test}" --text title,content',
        '--also-test "/data/imdb/test-*.parquet?text=text" --out work/ladder/amazon-2h',
        f'--also-test {test}?text=title,content"',
        '--test "/data/sst2/validation-*.parquet" --text sentence --out work/ladder/sst2-2h',
    ):
        assert words in plan
