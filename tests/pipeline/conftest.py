"""Data sets of a small corpus, made once."""

import shutil

import pytest

from tests.pipeline.test_job import shards


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A data set as a job leaves it, in out/, with its source and tokenizer beside it."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "out").mkdir()
    (folder / "out" / f".train-00000-of-00003.arrow.{'1' * 32}.partial").touch()  # of a killed one
    shards(folder)
    return folder


@pytest.fixture
def copy(finished, tmp_path):
    """All of it, to spoil."""
    return shutil.copytree(finished, tmp_path / "job")
