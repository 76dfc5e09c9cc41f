"""`--micro-batch-size auto`: halved until it fits, recorded; and running out of memory without."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from clozeline.model.bert import Layer
from clozeline.pipeline.common.errors import InputError, OutOfMemoryError, is_out_of_memory
from clozeline.pipeline.common.json_files import sealed
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, Normalization
from clozeline.train.artifacts.run import RunConfig, read_run
from clozeline.train.data.longest_batch import longest_batch
from clozeline.train.data.unpadded import UnpaddedBatch
from clozeline.train.engine import muon, precision
from clozeline.train.engine.distributed import World
from clozeline.train.engine.host_memory import free_memory
from clozeline.train.engine.muon import orthogonalized
from clozeline.train.engine.out_of_memory import out_of_memory_in_one_line
from clozeline.train.monitoring.metrics import read_metrics
from clozeline.train.pretraining.micro_batch import (
    check_memory,
    find_micro_batch_size,
    less_memory,
    smaller,
    with_found_size,
)
from tests.support.small import make_examples
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_training import TINY, numbers, train
from tests.support.training_configs import training_config

ALONE = World(0, 1, torch.device("cpu"))
LIMITED = Path(__file__).parents[1] / "support" / "limited_memory.py"


def sizes_from(size):
    found = []
    while size:
        found.append(size)
        size = smaller(size)
    return found


def test_sizes_are_halved_and_divide_the_share():
    assert sizes_from(96) == [96, 48, 24, 12, 6, 3, 1]
    assert sizes_from(27) == [27, 9, 3, 1]
    assert sizes_from(1) == [1]


@pytest.mark.parametrize(("batch", "processes", "size"), [(96, 1, 24), (40, 1, 20), (96, 8, 12)])
def test_a_resumed_run_takes_the_next_size_that_divides_its_share(batch, processes, size):
    world = replace(ALONE, size=processes)
    config = with_found_size(training_config(batch_size=batch), 24, world)
    assert config.micro_batch_size == size
    assert config.accumulation(processes) * size * processes == batch


def test_a_found_size_divides_the_shares_of_a_ramp_too():
    world, training = replace(ALONE, size=2), training_config(batch_size=96, batch_ramp=0.5)
    found = with_found_size(training, 16, world)
    assert found.micro_batch_size == 12
    assert [found.accumulation(2, size) for size in found.batch_sizes] == [1, 1, 2, 4]


@pytest.mark.parametrize("in_bf16", [False, True])
def test_a_size_is_tried_with_the_sums_that_training_keeps(small_folder, in_bf16):
    training = training_config(batch_size=2, precision="bf16", bf16_residual=in_bf16)
    config = RunConfig.of(TINY, training, read_manifest(small_folder), small_folder)
    sums = set()

    def watch(module, inputs, output):
        if isinstance(module, Layer):
            sums.add(inputs[0].dtype)

    hook = register_module_forward_hook(watch)
    try:
        assert find_micro_batch_size(config, ALONE) == 2
    finally:
        hook.remove()
    assert sums == {torch.bfloat16 if in_bf16 else torch.float32}


@pytest.mark.parametrize("has_bf16", [False, True])
def test_a_size_is_tried_with_the_products_of_the_run(has_bf16, small_folder, monkeypatch):
    """In float32 where a process has none in bfloat16; all are asked once, however many sizes."""
    training = training_config(batch_size=4, optimizer="muon")
    config = RunConfig.of(TINY, training, read_manifest(small_folder), small_folder)
    asked, tried = [], []

    def has_products(device):
        asked.append(device)
        return has_bf16

    def fail_at_first(matrices):
        tried.append(matrices.dtype)
        if len(tried) == 1:
            raise torch.OutOfMemoryError("out of memory")
        return orthogonalized(matrices)

    monkeypatch.setattr(precision, "_has_bf16", has_products)
    monkeypatch.setattr(muon, "orthogonalized", fail_at_first)
    assert find_micro_batch_size(config, ALONE) == 2
    assert set(tried) == {torch.bfloat16 if has_bf16 else torch.float32}
    assert len(asked) == 1


@pytest.mark.skipif(free_memory() is None, reason="asks Linux for its free memory")
def test_a_batch_that_the_kernel_would_kill_is_refused_before_the_first_step(many_rows, tmp_path):
    with pytest.raises(
        InputError, match=r"1,048,576 examples .* needs at least .*B of memory, and"
    ):
        train(many_rows, tmp_path / "run", batch_size=1 << 20)
    assert not (tmp_path / "run").exists()
    train(many_rows, tmp_path / "run", batch_size=64, max_steps=1)
    check_memory(read_run(tmp_path / "run"), ALONE)


@pytest.mark.skipif(free_memory() is None, reason="asks Linux for its free memory")
def test_the_processes_of_a_machine_share_its_memory(many_rows, tmp_path, monkeypatch):
    train(many_rows, tmp_path / "run", batch_size=64, max_steps=1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(1 << 30))
    with pytest.raises(InputError, match="are free for each process; give a smaller"):
        check_memory(read_run(tmp_path / "run"), replace(ALONE, size=2))


def test_auto_is_the_whole_share_until_a_size_is_found():
    config = training_config(batch_size=96, micro_batch_size="auto")
    assert config.accumulation(2) == 1
    assert config.rows_per_pass(2) == 48
    with pytest.raises(ValueError, match="micro_batch_size auto tries steps of the whole model"):
        training_config(micro_batch_size="auto", parallel="fsdp")
    with pytest.raises(ValueError, match="it must be one of auto"):
        training_config(micro_batch_size="most")


@pytest.mark.parametrize("pairs", ["segments", "none", "packed"])
def test_the_tried_batch_is_as_long_as_one_can_be(pairs):
    data = DataConfig(max_seq_length=16, pairs=pairs, max_predictions_per_seq=3)
    batch = longest_batch(6, data, unpadded=False).batch
    assert batch.input_ids.shape == (6, 16)
    assert batch.num_tokens == 6 * 16
    assert batch.masked_lm_weights.sum() == 6 * 3
    assert (batch.attention_mask.dtype == torch.int64) == (pairs == "packed")
    assert (batch.token_type_ids.any()) == (pairs == "segments")
    unpadded = longest_batch(6, data, unpadded=True).batch
    assert isinstance(unpadded, UnpaddedBatch)
    assert (unpadded.num_tokens, len(unpadded.masked_lm_positions)) == (6 * 16, 6 * 3)


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(1 << 60), lambda: np.empty(1 << 55), lambda: bytearray(1 << 60)],
    ids=["torch", "numpy", "python"],
)
def test_a_failed_allocation_is_said_in_one_line(allocate):
    with (
        pytest.raises(OutOfMemoryError, match=r"^out of memory in a step; rest\. \("),
        out_of_memory_in_one_line("a step", "rest"),
    ):
        allocate()


def test_other_errors_are_left_alone():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory."))
    assert not is_out_of_memory(ValueError("out of memory"))
    with pytest.raises(RuntimeError, match="mat1"), out_of_memory_in_one_line("a step", "rest"):
        torch.ones(2, 3).mm(torch.ones(2, 3))


def test_where_memory_suffices_auto_changes_nothing(small_folder, tmp_path, capsys):
    train(small_folder, tmp_path / "run", max_steps=3, micro_batch_size="auto")
    assert "note: --micro-batch-size 8: 1 forward pass per step" in capsys.readouterr().err
    train(small_folder, tmp_path / "whole", max_steps=3)
    assert numbers(tmp_path / "run") == numbers(tmp_path / "whole")
    config = json.loads((tmp_path / "run" / "run.json").read_text())
    assert config["training"]["micro_batch_size"] == config["found_micro_batch_size"] == 8


def test_a_resumed_run_uses_what_was_found_unless_told_otherwise(small_folder, tmp_path, capsys):
    out = tmp_path / "run"
    train(small_folder, out, max_steps=1, micro_batch_size="auto")
    path = out / "run.json"
    config = json.loads(path.read_text())
    config["training"]["micro_batch_size"] = config["found_micro_batch_size"] = 2
    path.write_text(json.dumps(sealed(config)))
    capsys.readouterr()

    def resumed(steps, **options):
        train(small_folder, out, max_steps=steps, resume=True, **options)
        stored = json.loads(path.read_text())
        return stored["training"]["micro_batch_size"], stored["found_micro_batch_size"]

    assert resumed(2) == (2, 2)
    assert resumed(3, micro_batch_size="auto") == (2, 2)
    assert "auto" not in less_memory(read_run(out))  # which would change nothing
    assert "note: --micro-batch-size" not in capsys.readouterr().err
    assert resumed(4, micro_batch_size=4) == (4, None)
    assert ", or auto" in less_memory(read_run(out))


# ---- in a process whose memory is limited --------------------------------------------------------


#: Arrow's own allocator reserves a gigabyte of addresses, which the limit counts.
ENVIRONMENT = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system"}


def limited(megabytes, *arguments):
    line = [sys.executable, str(LIMITED), str(megabytes), *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, check=False, env=ENVIRONMENT)


@pytest.fixture(scope="module")
def many_rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    return write_data_set(folder, train=(600, 500), validation=(8,), config=SMALL)


def command(folder, out, *options):
    """Steps whose largest tensors have 134 MB: what fails is one of them, and no small one."""
    numbers = ("--preset=bert-tiny", "--max-steps=1", "--batch-size=4096", "--precision=fp32")
    return ("pretrain", folder, "--out", out, *numbers, "--dropout=0", *options)


def found_in(run):
    return json.loads((run / "run.json").read_text())["found_micro_batch_size"]


@pytest.mark.slow
def test_out_of_memory_is_one_line_and_auto_halves_until_it_fits(many_rows, tmp_path):
    failed = limited(600, *command(many_rows, tmp_path / "failed"))
    assert failed.returncode == 1, failed.stderr
    last = failed.stderr.splitlines()[-1]
    assert last.startswith(
        "Error: out of memory in a step with 4,096 examples of 16 tokens per forward pass; give a "
        "smaller --micro-batch-size, or auto, or --activation-checkpointing. ("
    )
    assert "Traceback" not in failed.stderr

    out = tmp_path / "found"
    done = limited(600, *command(many_rows, out, "--micro-batch-size=auto"))
    assert done.returncode == 0, done.stderr
    found = found_in(out)
    assert 64 <= found <= 2048
    assert f"note: --micro-batch-size {found}: {4096 // found} forward passes" in done.stderr

    again = limited(6000, *command(many_rows, tmp_path / "given", "--micro-batch-size=512"))
    assert again.returncode == 0, again.stderr
    ours, theirs = (read_metrics(folder)[0] for folder in (out, tmp_path / "given"))
    assert ours["data_digest"] == theirs["data_digest"]  # the same global batch, in the same order
    assert ours["mlm_loss"] == pytest.approx(theirs["mlm_loss"], rel=1e-5)


@pytest.mark.slow
def test_word_vectors_that_do_not_fit_say_so(tmp_path):
    """A table of 50,000 words and 4,096 others has 819 MB."""
    tokens = [*SPECIAL_TOKENS, *(f"w{number}" for number in range(50_000))]
    tokenizer = Tokenizer(tokens, Normalization(lowercase=True, strip_accents=True))
    ids = np.arange(5, 5 + 1200 * 14).reshape(-1, 14)
    folder = write_data_set(
        tmp_path / "shards",
        train=(len(ids),),
        tokenizer=tokenizer,
        make=lambda rows, **_: make_examples([[2, *row, 3] for row in ids]),
    )
    line = ("pretrain", folder, "--out", tmp_path / "run", "--preset=bert-tiny", "--max-steps=1")
    failed = limited(700, *line, "--batch-size=8", "--word-vectors")
    assert failed.returncode == 1, failed.stderr
    assert failed.stderr.splitlines()[-1].startswith(
        "Error: out of memory in the word vectors; give --no-word-vectors. ("
    )


@pytest.mark.slow
def test_processes_agree_on_the_smallest_size(many_rows, tmp_path):
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    numbers = command(many_rows, tmp_path / "run", "--micro-batch-size=auto")
    line = [sys.executable, *torchrun, str(LIMITED), "6000,600", *map(str, numbers)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert 64 <= found_in(tmp_path / "run") <= 1024  # of 2048, which fit in the other process
