"""What several files of tests read: one run a session, and copies of it to change."""

import shutil
from pathlib import Path

import pytest

from tests.support.small_training import train


@pytest.fixture(scope="session")
def finished(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 steps, checkpoints at 4, 8 and 12, evaluated at 6 and 12; tests leave it as it is."""
    out = tmp_path_factory.mktemp("finished") / "run"
    train(small_folder, out, eval_every=6)
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return shutil.copytree(finished, tmp_path / "run")
