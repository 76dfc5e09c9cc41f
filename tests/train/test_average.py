"""The mean of checkpoints: exact, a run for every later command, and nothing else is averaged."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.checkpoint import list_checkpoints, load_moments, load_weights
from clozeline.train.artifacts.pretrained import load_pretrained
from clozeline.train.artifacts.run import load_run, read_run, write_run
from clozeline.train.monitoring.health import find_warnings
from clozeline.train.monitoring.metrics import read_metrics
from clozeline.train.pretraining.average import mean_of
from tests.support.command import output_of, refused
from tests.support.files import times
from tests.support.small_data import write_data_set
from tests.support.small_runs import tokenizer_of
from tests.support.small_training import go_back, train


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("average") / "shards"
    return write_data_set(folder, train=(40, 30), validation=(20,))


@pytest.fixture(scope="module")
def run(shards):
    train(shards, shards.parent / "run")  # checkpoints of steps 4, 8 and 12
    return shards.parent / "run"


@pytest.fixture(scope="module")
def averaged(run, shards):
    out = run.parent / "averaged"
    said = output_of("average", run, "--last", 2, "--evaluate", shards, "--out", out)
    assert said.startswith("20 held-out examples\n")
    assert said.endswith(f"mean of the weights of steps 8 and 12: {out}\n")
    return out


def test_each_weight_is_the_mean(run, averaged):
    (checkpoint,) = list_checkpoints(averaged)
    assert checkpoint.name == "step-00000012"
    found = load_weights(checkpoint)
    eighth, twelfth = (load_weights(folder) for folder in list_checkpoints(run)[1:])
    assert found.keys() == eighth.keys() == twelfth.keys()
    for name, weight in found.items():
        wanted = (eighth[name].double() + twelfth[name].double()) / 2
        assert torch.equal(weight, wanted.float()), name
    assert any(not torch.equal(found[name], twelfth[name]) for name in found)
    tables = [name for name in found if "word_embeddings" in name or "decoder.weight" in name]
    assert len(tables) == 1  # the decoder is tied to it
    assert load_moments(checkpoint) == {}


def test_it_records_what_it_is_made_of(run, averaged):
    config = read_run(averaged)
    recorded = [
        json.loads((folder / "state.json").read_text())["files"]["model.safetensors"]
        for folder in list_checkpoints(run)[1:]
    ]
    assert config.averaged == dict(zip(("step-00000008", "step-00000012"), recorded, strict=True))
    assert read_run(run).averaged is None
    heldout = json.loads((averaged / "summary.json").read_text())["heldout"]
    assert heldout["examples"] == 20


def test_every_later_command_takes_it(averaged, shards, tmp_path):
    assert "20 held-out examples" in output_of("evaluate", averaged, shards)
    assert "cat" in output_of("fill", averaged, "the [MASK] cat")
    output_of("export", averaged, "--out", tmp_path / "hf")
    assert "masked-LM loss" in (tmp_path / "hf" / "README.md").read_text()
    output_of("report", averaged, "--out", tmp_path / "report.html")
    # What `finetune` and `benchmark` read.
    assert (
        load_pretrained(averaged).weights.keys() == load_pretrained(tmp_path / "hf").weights.keys()
    )


def test_a_run_starts_from_it_and_does_not_continue_it(averaged, shards, tmp_path):
    said = refused("pretrain", shards, "--out", averaged, "--resume", "--max-steps", 20)
    assert "is an average of checkpoints" in said
    assert "--start-from" in said
    train(shards, tmp_path / "more", start_from=averaged, max_steps=2)
    assert read_run(tmp_path / "more").started_from is not None


def test_an_average_that_was_not_evaluated_has_pages_and_can_still_be(
    run, averaged, shards, tmp_path
):
    out = run.parent / "not-evaluated"
    line = ("average", run, "--last", 2, "--out", out)
    output_of(*line)
    assert json.loads((out / "summary.json").read_text())["heldout"] is None
    assert find_warnings(read_metrics(out), total_steps=None) == []
    output_of("report", out, "--out", tmp_path / "report.html")
    said = output_of(*line, "--evaluate", shards)
    assert said.startswith("20 held-out examples\n")
    assert said.endswith(f"already complete: mean of the weights of steps 8 and 12: {out}\n")
    for name in ("summary.json", "metrics.jsonl"):
        assert (out / name).read_text() == (averaged / name).read_text()


def test_the_same_average_is_kept_and_other_folders_are_refused(run, averaged, shards):
    before = times(averaged)
    assert output_of("average", run, "--last", 2, "--out", averaged).startswith("already complete")
    assert times(averaged) == before
    assert "holds another run" in refused("average", run, "--last", 3, "--out", averaged)
    assert "holds another run" in refused("average", run, "--last", 2, "--out", run)
    assert "not empty and not a run" in refused("average", run, "--last", 2, "--out", shards)


def test_checkpoints_of_a_larger_save_every_before_a_resumption_count(run, shards, tmp_path):
    more, out = shutil.copytree(run, tmp_path / "more"), tmp_path / "out"
    train(shards, more, resume=True, max_steps=16, save_every=2)
    said = output_of("average", more, "--last", 5, "--out", out)
    gaps = [line for line in said.splitlines() if line.startswith("note: ")]
    assert [line.partition("between ")[2] for line in gaps] == [
        f"steps {before} and {before + 4}, though one is saved every 2 steps." for before in (4, 8)
    ]
    assert f"mean of the weights of steps 4, 8, 12, 14 and 16: {out}\n" in said


def test_what_cannot_be_averaged_is_refused(run, tmp_path):
    out = tmp_path / "out"
    said = refused("average", run, "--last", 4, "--out", out)
    assert "has 3 checkpoints (step 4, 8, 12), not 4; give --last 3 at most" in said
    gap = shutil.copytree(run, tmp_path / "gap")  # step 4 was the best
    shutil.rmtree(list_checkpoints(gap)[1])
    config, tokenizer, _ = load_run(gap)
    write_run(gap, replace(config, training=replace(config.training, keep=1)), tokenizer)
    said = refused("average", gap, "--last", 2, "--out", out)
    assert "no checkpoint between steps 4 and 12, though one is saved every 4 steps; give" in said
    one = go_back(shutil.copytree(run, tmp_path / "one"), 4)
    assert "has 1 checkpoint (step 4), not 2; train with" in refused(
        "average", one, "--last", 2, "--out", out
    )
    damaged = shutil.copytree(run, tmp_path / "damaged")
    path = list_checkpoints(damaged)[1] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "its content has changed" in refused("average", damaged, "--last", 2, "--out", out)
    output_of("average", run, "--last", 1, "--out", out, code=2)
    assert not out.exists()
    out.mkdir()
    (out / ".notes").write_text("years of work")
    said = refused("average", run, "--last", 2, "--out", out)
    assert "not part of an average (.notes), and replacing it would" in said
    assert (out / ".notes").exists()


def test_a_checkpoint_that_training_removes_meanwhile_is_not_called_damaged(run, tmp_path):
    first, *others = list_checkpoints(shutil.copytree(run, tmp_path / "training"))
    shutil.rmtree(first)
    with pytest.raises(InputError, match=rf"{first}.* a run that is still training may"):
        mean_of([first, *others])


def test_shards_of_another_tokenizer_are_refused_before_anything_is_averaged(run, tmp_path):
    other = write_data_set(tmp_path / "other", train=(4,), tokenizer=tokenizer_of("other"))
    said = refused("average", run, "--last", 2, "--evaluate", other, "--out", tmp_path / "out")
    assert said.startswith(f"{other} was made with another tokenizer (")
    assert f"than {run} (" in said
    assert not (tmp_path / "out").exists()
