"""Shared fixtures."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

# Before torch is imported, here and in the processes that tests start: with small tensors
# threads only cost time, and a fixed number of threads gives the same bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from hypothesis import HealthCheck, settings

from tests.support.small_data import write_data_set

if not os.environ.get("CLOZELINE_DATA"):  # empty is as good as unset
    os.environ.pop("CLOZELINE_DATA", None)
# `nohup` and `&` ignore SIGINT, and so would the processes that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Time per example depends on the load of the machine, not on the code.
PROFILE = {"deadline": None, "max_examples": 50}
# A folder or a patch that all examples of a test share is what these tests want.
PROFILE |= {"suppress_health_check": [HealthCheck.function_scoped_fixture]}
settings.register_profile("clozeline", **PROFILE)
settings.load_profile("clozeline")
#: Files of few but long tests, which begin first: else the last one keeps all but one process idle.
LONG = {
    *("test_reproducible", "test_distributed", "test_finetune_search", "test_distribution"),
    *("test_dump", "test_export_formats", "test_killed_training", "test_resume_shards"),
    *("test_finetune", "test_out_folder", "test_tasks", "test_train_tokenizer", "test_remote"),
    "test_resume",
}


def pytest_configure(config: pytest.Config) -> None:
    """pytest-xdist would begin with the files of most tests."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first; what needs a GPU is skipped without one, but for what a dry run has."""
    items.sort(key=lambda item: item.path.stem not in LONG)
    is_dry = "CLOZELINE_DRY_RUN" in os.environ
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not has_gpu():
        for item in on_gpu:
            if not (is_dry and item.path.name == "test_gpu.py"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def has_gpu() -> bool:
    """Tests of the pipeline need not wait for torch."""
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    """`transformers` without its noise."""
    from tests.support.small_huggingface import quiet_transformers

    with quiet_transformers():
        yield


@pytest.fixture(scope="session")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished data set: 57 training examples in 5 shards, one without rows; 23 to validate."""
    folder = tmp_path_factory.mktemp("small")
    return write_data_set(folder, train=(13, 20, 0, 7, 17), validation=(9, 14))
