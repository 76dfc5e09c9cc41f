"""A process that dies or hangs ends the others, which name it."""

import json
import platform

import pytest
import torch.distributed as dist

from clozeline.pipeline.common.errors import LostProcessError
from clozeline.train.engine.distributed import World
from clozeline.train.engine.lost_process import is_lost_process, lost_process_in_one_line
from tests.support.small_jobs import python
from tests.support.waiting import free_port

KEEPS_STORE = "the rendezvous store, on the machine of process 0, stopped answering ("
#: How it is lost, seconds of patience, the lost rank, and what the other one says.
LOST = [
    ("SIGKILL", 60, 1, f"process 1 on {platform.node()} stopped answering ("),
    ("SIGSTOP", 2, 1, f"process 1 on {platform.node()} stopped answering ("),
    ("SIGSTOP", 2, 0, KEEPS_STORE),  # its kernel still accepts connections
]


def test_the_missing_process_is_named_with_its_host():
    pairs = [f"{kind},{seconds},{lost},{free_port()}" for kind, seconds, lost, _ in LOST]
    others = json.loads(python("tests/support/lost_rank.py", *pairs))
    for (*_, start), (code, said) in zip(LOST, others, strict=True):
        assert code == 1
        (line,) = said.splitlines()
        assert line.startswith(start)
        assert line.endswith("with --resume continues from the newest checkpoint.")


def test_a_process_that_was_cut_off_does_not_wait_for_the_store(monkeypatch):
    """The store itself answers nothing for as long as TCP sends again."""
    port = free_port()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    world = World(1, 2, None, dist.HashStore())  # type: ignore[arg-type]
    expected = r"the rendezvous store, on the machine of process 0, stopped answering \(Timed out"
    with pytest.raises(LostProcessError, match=expected), lost_process_in_one_line(world):
        raise RuntimeError("Timed out waiting 20000ms for recv operation to complete")


def test_other_errors_pass():
    world = World(0, 2, None)  # type: ignore[arg-type]  # its device is not used
    with pytest.raises(RuntimeError, match="shapes"), lost_process_in_one_line(world):
        raise RuntimeError("shapes do not match")
    alone = World(0, 1, None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Broken pipe"), lost_process_in_one_line(alone):
        raise RuntimeError("Broken pipe")
    assert is_lost_process(dist.DistNetworkError("no route"))
