"""The folders that commands read, made once."""

from pathlib import Path

import pytest

from tests.faults.trials import make_folder
from tests.support.small_classifier import write_small_classifier


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """data/, run/, tokenizer/, classifier/, text.txt and rows.csv; tests change copies."""
    folder = tmp_path_factory.mktemp("whole")
    make_folder(folder)
    write_small_classifier(folder / "classifier")
    return folder
