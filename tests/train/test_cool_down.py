"""A decay of the learning rate from a checkpoint of a run: the end of a `wsd` run, bit for bit."""

import json
import shutil
from dataclasses import replace

import pytest

from clozeline.train.artifacts.checkpoint import list_checkpoints, weights_digest
from clozeline.train.artifacts.run import read_run
from tests.support.command import output_of, refused
from tests.support.files import contents
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_runs import tokenizer_of
from tests.support.small_training import assert_same_run, command_line, go_back, numbers, weights

PEAK = 2e-3


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cool") / "shards"
    return write_data_set(folder, train=(60, 50), validation=(16,))


@pytest.fixture(scope="module")
def run(shards):
    """A constant learning rate for 14 steps; checkpoints of steps 4, 8, 12 and 14."""
    out = shards.parent / "run"
    line = {"schedule": "constant", "warmup": 0.0, "learning_rate": PEAK, "max_steps": 14}
    output_of(*command_line(shards, out, **line))
    return out


@pytest.fixture(scope="module")
def whole(shards):
    """A `wsd` run whose learning rate falls in steps 13 to 16."""
    out = shards.parent / "whole"
    line = {"schedule": "wsd", "warmup": 0.0, "learning_rate": PEAK, "max_steps": 16}
    output_of(*command_line(shards, out, "--save-every", 2, **line, cool_down=0.25))
    return out


def cool_line(shards, out, run, step, *options):
    line = ["pretrain", shards, "--out", out, "--from", f"{run}@{step}"]
    every = ["--log-every", 1, "--save-every", 2, "--eval-every", 0, "--keep", 9]
    return [str(word) for word in (*line, "--schedule", "cool-down", *every, *options)]


@pytest.fixture(scope="module")
def cooled(run, shards):
    out = shards.parent / "cooled"
    before = contents(run)
    said = output_of(*cool_line(shards, out, run, 12, "--max-steps", 16))
    assert said.endswith(f"step 16 of 16: {out}\n")
    assert contents(run) == before
    return out


def test_it_is_the_end_of_a_wsd_run_bit_for_bit(cooled, whole):
    """Weights, moments, dropout, the examples (by their digest) and every logged number."""
    assert weights(cooled) == weights(whole)
    last = [line for line in numbers(whole) if line["step"] > 12]
    assert numbers(cooled) == last
    assert any("data_digest" in line for line in last)
    for one, other in zip(list_checkpoints(cooled), list_checkpoints(whole)[-2:], strict=True):
        for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
            assert (one / name).read_bytes() == (other / name).read_bytes()


def test_the_decay_of_a_run_with_another_shape_has_that(shards, tmp_path):
    run, out = tmp_path / "run", tmp_path / "out"
    given = {"schedule": "wsd-sqrt", "warmup": 0.0, "learning_rate": PEAK, "max_steps": 16}
    output_of(*command_line(shards, run, **given, cool_down=0.125))  # from step 14 on
    line = cool_line(shards, out, run, 12, "--max-steps", 16)
    output_of(*line)
    rates = [line["learning_rate"] for line in numbers(out) if "mlm_loss" in line]
    assert rates == pytest.approx([PEAK * (1 - x**0.5) for x in (0.125, 0.375, 0.625, 0.875)])
    assert "--schedule wsd-sqrt " in output_of(*line, "--resume", "--print-recipe")


def test_it_resumes_with_and_without_the_option(cooled, run, shards, tmp_path):
    line = cool_line(shards, tmp_path / "again", run, 12, "--max-steps", 16, "--resume")
    go_back(shutil.copytree(cooled, tmp_path / "again"), 14)
    output_of(*line)
    assert_same_run(tmp_path / "again", cooled)
    go_back(tmp_path / "again", 14)
    option = line.index("--from")
    del line[option : option + 4]
    gone = line.index("--max-steps")
    output_of(*line[:gone], *line[gone + 2 :], "--preset", "bert-tiny")
    assert_same_run(tmp_path / "again", cooled)


def test_more_steps_prolong_the_decay_as_the_recorded_options_say(cooled, shards, tmp_path):
    """Steps 13 to 20, and not the last quarter of 20 steps."""
    out = go_back(shutil.copytree(cooled, tmp_path / "out"), 14)
    output_of("pretrain", shards, "--out", out, "--resume", "--max-steps", 20)
    assert read_run(out).training.cool_down == 8 / 20
    found = [
        output_of("pretrain", "--config", out / "run.json", *where, "--print-recipe")
        for where in (["--out", out, "--resume"], ["--out", tmp_path / "new"])
    ]
    ours, anew = ([line[:30] for line in text.splitlines()] for text in found)
    assert ours == anew
    assert "--cool-down 0.4" in found[1]


def test_it_records_where_it_is_from(cooled, run):
    config = read_run(cooled)
    assert config.started_from == weights_digest(list_checkpoints(run)[2])
    assert config.trained_before == 16  # tokens of an example there
    training = config.training
    assert (training.schedule, training.warmup, training.cool_down) == ("wsd", 0.0, 0.25)
    recorded = json.loads((cooled / "run.json").read_text())["options"]["pretrain"]
    assert (recorded["from"], recorded["schedule"]) == (f"{run}@12", "cool-down")


def test_other_shards_are_read_from_their_beginning(run, tmp_path):
    """As a new run on them reads them: the same examples, by their digest, in the same steps."""
    mixed = tmp_path / "mixed"
    other = write_data_set(tmp_path / "other", train=(61, 50), validation=(16,))
    output_of(*cool_line(other, mixed, run, 12, "--max-steps", 16))
    output_of(*command_line(other, tmp_path / "new", max_steps=4))
    new = [line["data_digest"] for line in numbers(tmp_path / "new") if "mlm_loss" in line]
    lines = [line for line in numbers(mixed) if "mlm_loss" in line]
    assert [line["data_digest"] for line in lines] == new
    rates = [PEAK * x for x in (0.875, 0.625, 0.375, 0.125)]
    assert [line["learning_rate"] for line in lines] == pytest.approx(rates)
    config = read_run(mixed)
    assert config.dataset_digest != read_run(run).dataset_digest
    assert config.started_from == weights_digest(list_checkpoints(run)[2])


def test_without_a_number_of_steps_it_adds_a_quarter(run, whole, shards, tmp_path):
    said = output_of(*cool_line(shards, tmp_path / "out", run, 8, "--print-recipe"))
    assert "--max-steps 10 " in said
    assert "--learning-rate 0.002 " in said
    assert "--cool-down 0.2 " in said
    said = output_of(*cool_line(shards, tmp_path / "out", whole, 14, "--print-recipe"))
    assert f"--learning-rate {0.625 * PEAK:g} " in said  # where the rate is falling
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_cooled_down_is_refused_in_one_line(run, shards, tmp_path):
    out = tmp_path / "out"

    def said(step, *options, data=shards, of=run):
        return refused(*cool_line(data, out, of, step, *options))

    assert "has no checkpoint of step 9; it has: 4, 8, 12, 14" in said(9)
    assert "--max-steps 12 is not after step 12" in said(12, "--max-steps", 12)
    assert "--warmup 0.1 does not go with" in said(12, "--warmup", 0.1)
    assert "was trained with --optimizer adamw; leave the" in said(12, "--optimizer", "muon")
    line = ("pretrain", shards, "--out", run, "--resume", "--optimizer", "muon")
    assert "was trained with --optimizer adamw; give that one, or another --out" in refused(*line)
    assert "hidden_size 128 there, 256 now" in said(12, "--preset", "bert-mini")
    assert "seed" in said(12, "--seed", 5)
    longer = write_data_set(
        tmp_path / "longer", train=(8,), config=replace(SMALL, max_seq_length=1024)
    )
    assert "max_position_embeddings 512 there, 1024 now. Give" in said(12, data=longer)
    tokenizer = tokenizer_of("the", "of", "and")
    foreign = write_data_set(tmp_path / "foreign", train=(8,), tokenizer=tokenizer)
    assert "Give shards of its tokenizer" in said(12, data=foreign)
    assert "give a run of `clozeline pretrain`" in said(12, of=shards)
    same = refused(*cool_line(shards, run, run, 12))
    assert f"--from and --out are both {run}" in same
    assert not out.exists()


@pytest.mark.parametrize(
    "text", ["run", "run@", "@12", "run@0", "run@-4", "run@1.5", "run@" + "9" * 5000]
)
def test_a_run_and_a_step_have_to_be_given(text, tmp_path):
    line = cool_line(tmp_path / "shards", tmp_path / "out", tmp_path, 1)
    line[line.index("--from") + 1] = text
    assert "continues a run from one of its checkpoints; give it as --from" in refused(*line)
