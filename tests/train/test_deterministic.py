"""`--deterministic`: torch's switch is on while a run trains, and two runs are the same."""

import os

import pytest
import torch

from clozeline.pipeline.common.errors import InputError
from clozeline.train.engine.deterministic import WORKSPACE, deterministic_kernels
from tests.support.small_training import assert_same_run, train


def test_two_runs_are_the_same_bits_with_the_switch_on(small_folder, tmp_path):
    seen = set()
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda *_: seen.add(torch.are_deterministic_algorithms_enabled())
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(WORKSPACE[0], raising=False)
        for name in ("one", "two"):
            train(small_folder, tmp_path / name, deterministic=True, max_steps=2, save_every=2)
        assert os.environ[WORKSPACE[0]] == WORKSPACE[1]
    hook.remove()
    assert_same_run(tmp_path / "one", tmp_path / "two")
    assert seen == {True}
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_kernel_that_is_not_deterministic_is_one_line():
    x, places = torch.zeros(2), torch.zeros(2, dtype=torch.long)
    line = r"^--deterministic: .*put_.*Leave the option out"
    with pytest.raises(InputError, match=line), deterministic_kernels(True):
        x.put_(places, torch.ones(2), accumulate=False)
    with deterministic_kernels(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(RuntimeError, match="size"), deterministic_kernels(True):
        torch.ones(2) @ torch.ones(3)
