"""`clozeline verify --loader`: sound orders pass, and a broken one is reported."""

import numpy as np
import pytest
from click.testing import CliRunner

from clozeline.pipeline.common.errors import CheckFailedError
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.train.cli import main
from clozeline.train.data.loader_check import check_loader
from clozeline.train.data.order import Order
from tests.support.small_data import write_data_set


@pytest.mark.parametrize("rows", [(7,), (13, 20, 0, 7, 17), (150, 151)])
def test_the_guarantees_hold_on_any_shards(tmp_path, rows):
    folder = write_data_set(tmp_path / "data", train=rows)
    assert check_loader(folder).startswith(f"{sum(rows)} training examples are each read once")


def test_an_order_that_reads_a_row_twice_is_reported(tmp_path, monkeypatch):
    folder = write_data_set(tmp_path / "data", train=(40, 23))
    assert len(read_shard(folder / read_manifest(folder).shards[0].name)) == 40
    right = Order.locate
    monkeypatch.setattr(Order, "locate", lambda self, at: right(self, np.where(at == 5, 4, at)))
    with pytest.raises(CheckFailedError, match="does not read each training example once"):
        check_loader(folder)


def test_the_command_has_the_option_and_needs_shards(tmp_path):
    shown = CliRunner().invoke(main, ["verify", "--help"])
    assert "--loader" in shown.output
    assert "--source" in shown.output
    refused = CliRunner().invoke(main, ["verify", str(tmp_path), "--loader"])
    assert refused.exit_code == 2
