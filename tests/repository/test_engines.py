"""The graph on Flink, Spark and Prism; `make engines` does all three, and prints a table."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clozeline.pipeline.common.errors import InputError
from tests.faults.engines import ENGINES, fetch
from tests.support.network_hosts import unshare_command
from tests.support.small_jobs import ROOT


def test_without_java_or_maven_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, package in {"java": "openjdk-17", "mvn": "maven"}.items():
        message = f"there is no `{name}`; install the package {package}"
        with pytest.raises(InputError, match=message):
            fetch(ENGINES[0], tmp_path, "mvn")
        (tmp_path / name).touch(mode=0o755)


@pytest.mark.slow
@pytest.mark.parametrize("engine", [*(engine.name for engine in ENGINES), "prism"])
def test_an_engine_writes_the_bytes_of_a_local_job(engine):
    cache = Path(os.environ.get("CLOZELINE_ENGINES", ROOT / "work" / "engines"))
    if not (cache / ("prism" if engine == "prism" else f"{engine}/jars")).exists():
        pytest.skip(f"{cache} does not have {engine}: `make engines` fetches it")
    try:
        unshare_command()
    except InputError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "tests.faults.engines", "--cache", str(cache)]
    done = subprocess.run(
        [*command, "--only", engine], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert [(row[0], row[-1]) for row in rows] == [("local", "same"), (engine, "same")]
