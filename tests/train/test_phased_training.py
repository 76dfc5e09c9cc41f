"""A run with phases is one run: killed, resumed and cooled down across their borders.

12 steps: six on examples of 8 tokens, then six on 16. Checkpoints are of steps 4, 8 and 12.
"""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.checkpoint import (
    list_checkpoints,
    load_moments,
    load_weights,
    read_state,
    step_of,
)
from clozeline.train.artifacts.run import read_run
from clozeline.train.data.batch import digest_text
from clozeline.train.data.loader import Loader
from clozeline.train.data.phases import states_of
from tests.support.command import output_of, refused
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_runs import tokenizer_of
from tests.support.small_training import (
    assert_same_run,
    command_line,
    go_back,
    numbers,
    preset_of,
    train,
    weights,
)
from tests.support.two_processes import MODEL, run_jobs
from tests.train.test_cool_down import cool_line
from tests.train.test_phases import SHORT

RATE = 0.3
#: Steps and examples of a batch in each phase.
STEPS_OF = {"short": (1, 2, 3, 4, 5, 6), "long": (7, 8, 9, 10, 11, 12)}
SIZE_OF = {"short": 16, "long": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    short = write_data_set(folder / "short", train=(40, 0, 31), config=SHORT)
    long = write_data_set(folder / "long", train=(13, 20, 0, 7, 17), validation=(9, 14))
    return {"short": short, "long": long}


@pytest.fixture(scope="module")
def phases(folders):
    return {"phase": (f"{folders['short']}@0.5",), "masked_lm_prob": RATE}


@pytest.fixture(scope="module")
def whole(folders, phases):
    """The run that nothing interrupts, of the command's own model."""
    out, long = folders["long"].parent / "whole", folders["long"]
    train(long, out, model=preset_of(long), eval_every=6, **phases)
    return out


@pytest.fixture
def run(whole, tmp_path):
    """A copy to change."""
    return shutil.copytree(whole, tmp_path / "run")


def digests_of(run):
    return {line["step"]: line["data_digest"] for line in numbers(run) if "data_digest" in line}


def test_each_step_reads_its_data_set_from_where_the_step_before_stopped(whole, folders):
    wanted = {}
    for name, steps in STEPS_OF.items():
        batches = iter(Loader(folders[name], batch_size=SIZE_OF[name], seed=0, prefetch=0))
        wanted |= {step: digest_text(next(batches).digest) for step in steps}
    assert digests_of(whole) == wanted
    positions = [
        [found["next_position"] for found in states_of(read_state(folder).loader)]
        for folder in list_checkpoints(whole)
    ]
    assert positions == [[0, 64], [16, 96], [48, 96]]


def test_where_longer_examples_begin_the_positions_of_the_shorter_ones_continue(
    folders, phases, tmp_path
):
    """And their moments; also where a run is resumed between the two steps."""
    long, table = folders["long"], "encoder.embeddings.position_embeddings.weight"
    still = {**phases, "learning_rate": 1e-9, "save_every": 1}
    train(long, tmp_path / "run", model=preset_of(long), **still)
    saved = {step_of(folder): folder for folder in list_checkpoints(tmp_path / "run")}
    before, after, end = (load_weights(saved[step])[table] for step in (6, 7, 12))
    assert not torch.allclose(before[8:16], before[:8], atol=0.01)
    torch.testing.assert_close(after[:8], before[:8], atol=1e-6, rtol=0)
    torch.testing.assert_close(after[8:16], before[:8], atol=1e-6, rtol=0)
    torch.testing.assert_close(end, after, atol=1e-6, rtol=0)
    moments = load_moments(saved[6])
    assert not moments[f"{table}/exp_avg_sq"][8:].any()
    again = go_back(shutil.copytree(tmp_path / "run", tmp_path / "again"), 6)
    train(long, again, model=preset_of(long), resume=True, **still)
    assert_same_run(again, tmp_path / "run")


@pytest.mark.slow
def test_two_processes_are_one_across_a_border(folders, phases, tmp_path):
    """Also where a sharded model's weights have just been gathered for an evaluation."""
    phases, long = {**phases, "eval_every": 6}, folders["long"]
    resumed = {"copy_of": tmp_path / "one", "step": 4}
    jobs = [
        {"shards": long, "out": tmp_path / "two", "changes": phases},
        {"shards": long, "out": tmp_path / "sharded", "changes": {**phases, "parallel": "fsdp"}},
        {"shards": long, "out": tmp_path / "resumed", "changes": phases, **resumed},
    ]
    train(long, tmp_path / "one", model=MODEL, **phases)
    run_jobs(jobs, tmp_path)
    for name in ("two", "sharded", "resumed"):
        assert digests_of(tmp_path / name) == digests_of(tmp_path / "one")
        for ours, theirs in zip(numbers(tmp_path / name), numbers(tmp_path / "one"), strict=True):
            assert ours.get("mlm_loss", 0) == pytest.approx(theirs.get("mlm_loss", 0), rel=1e-4)


def test_a_resumed_run_keeps_its_phases_and_refuses_others(run, whole, folders, phases, tmp_path):
    long = folders["long"]
    other = command_line(long, go_back(run, 8), "--resume", masked_lm_prob=0.15)
    assert "holds a run with other phases or another masking rate; leave" in refused(*other)
    changed = write_data_set(tmp_path / "changed", train=(41, 0, 31), config=SHORT)
    other = command_line(long, run, "--resume", f"--phase={changed}@0.5", masked_lm_prob=RATE)
    assert "cannot continue at position 96 in the same order" in refused(*other)
    for step in (8, 4):  # bit for bit: losses, accuracies, and the bytes of the last checkpoint
        output_of(*command_line(long, go_back(run, step), "--resume", eval_every=6))
        assert_same_run(run, whole)
    recorded = json.loads((run / "run.json").read_text())["options"]["pretrain"]
    assert {name: recorded[name] for name in phases} == {
        "phase": list(phases["phase"]),
        "masked_lm_prob": RATE,
    }


@pytest.mark.parametrize("step", [4, 10])
def test_a_decay_from_any_phase_is_the_end_of_a_wsd_run(step, folders, phases, tmp_path):
    """Bit for bit; from step 4 in the short examples, from step 10 in the long ones."""
    here, last = (folders["short"], 6) if step == 4 else (folders["long"], 12)
    options = {"schedule": "constant", "warmup": 0.0, "eval_every": 0, "save_every": 2, **phases}
    run, falls, cooled = tmp_path / "run", tmp_path / "falls", tmp_path / "cooled"
    output_of(*command_line(folders["long"], run, **options))
    output_of(*cool_line(here, cooled, run, step, "--max-steps", last))
    training = read_run(cooled).training
    found = training.batch_size, training.masked_lm_prob, training.phase
    assert found == (16 if step == 4 else 8, RATE, ())
    options |= {"schedule": "wsd", "cool_down": 2 / last, "max_steps": last}
    if step == 4:  # a run of the first phase alone
        options |= {"phase": (f"{here}@0.99",)}
    output_of(*command_line(folders["long"], falls, **options))
    assert weights(cooled) == weights(falls)
    lines = [
        [line for line in numbers(x) if line["step"] > step and "mlm_loss" in line]
        for x in (cooled, falls)
    ]
    assert lines[0] == lines[1]
    assert [line["step"] for line in lines[0]] == [last - 1, last]


def test_the_recipe_and_the_first_lines_name_the_phases(folders, phases, tmp_path):
    short, long = folders["short"], folders["long"]
    lines = [
        f"phase      steps 1 to 6: {short}, 16 examples of up to 8 tokens, 30 % masked",
        f"phase      steps 7 to 12: {long}, 8 examples of up to 16 tokens, 30 % masked",
    ]
    line = command_line(long, tmp_path / "run", "--print-recipe", **phases)
    assert "\n".join(lines) in output_of(*line)
    assert "\n".join(lines) in output_of(*command_line(long, tmp_path / "run", **phases))


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--phase=a@0.6 --phase=b@0.4", "leave nothing for the other parts."),
        ("--phase=@0.5", "one of its parts is empty, so leave that out."),
        ("--phase=nowhere@1.0", "--phase is 'nowhere@1.0'; a fraction, after the last @ of a"),
        ("--phase=nowhere@0.5", "nowhere"),
    ],
)
def test_a_bad_schedule_is_one_line(option, complaint, folders, tmp_path):
    said = output_of(*command_line(folders["long"], tmp_path / "run", *option.split()), code=2)
    assert complaint in said.splitlines()[-1]
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_data_set_that_does_not_fit_is_one_line(folders, tmp_path):
    short, long = folders["short"], folders["long"]
    out = tmp_path / "run"
    line = command_line(short, out, f"--phase={long}@0.5")
    assert "has examples of 16 tokens, " in refused(*line)
    longer = write_data_set(
        tmp_path / "longer", train=(9,), config=replace(SMALL, max_seq_length=32)
    )
    with pytest.raises(InputError, match="the model reads at most 16"):
        train(longer, out, phase=(f"{long}@0.5",))
    foreign = write_data_set(tmp_path / "foreign", train=(9,), tokenizer=tokenizer_of("the", "of"))
    line = command_line(long, out, f"--phase={foreign}@0.5")
    assert "was built with another tokenizer" in refused(*line)
    assert not (out / "run.json").exists()
