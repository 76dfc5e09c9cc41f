"""Folders that `clozeline view` shows, and a server that shows them: fixtures of its tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from clozeline.pipeline.common.http_server import HttpServer
from clozeline.pipeline.view.site import Site
from clozeline.train.view.view import make_site
from tests.support.http_clients import running
from tests.support.small_classifier import write_small_classifier
from tests.support.small_training import STILL, train


@pytest.fixture(scope="module")
def run(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 steps, evaluated at 4, 8 and 12."""
    out = tmp_path_factory.mktemp("runs") / "run"
    train(small_folder, out, model=STILL, eval_every=4)
    return out


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its name would be markup if a page did not escape it."""
    return write_small_classifier(tmp_path_factory.mktemp("classifiers") / "<i>one")


@pytest.fixture(scope="module")
def site(small_folder: Path, run: Path, classifier: Path) -> Site:
    return make_site([small_folder, run, classifier])


@pytest.fixture(scope="module")
def server(site: Site) -> Iterator[HttpServer]:
    with running(site.server()) as server:
        yield server
