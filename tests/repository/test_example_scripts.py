"""The scripts and the notebook in examples/ do what they say, at a tiny size."""

import json
import runpy
import shlex
import socket
import subprocess
import sys
import threading
import tomllib
from contextlib import contextmanager

import nbformat
import pytest
import torch
import uvicorn
from nbclient import NotebookClient

from clozeline.train.artifacts.checkpoint import list_checkpoints, load_weights
from clozeline.train.artifacts.pretrained import load_pretrained
from clozeline.train.artifacts.run import read_run
from clozeline.train.finetuning.classifier import load_classifier
from tests.support.command import output_of, refused
from tests.support.printed_commands import parse
from tests.support.small_classifier import write_small_classifier
from tests.support.small_data import write_data_set
from tests.support.small_jobs import ROOT
from tests.support.small_training import train
from tests.support.waiting import ask_once

NOTEBOOK = ROOT / "examples" / "first_model.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Jupyter's libraries
def test_the_notebook_runs_from_text_to_a_classifier_and_draws_the_curve(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, startup_timeout=200, resources=place).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 1
    report = json.loads((tmp_path / "work/notebook/classifier/report.json").read_text())
    assert report["finetuned"]["accuracy"] > 0.6
    said = "".join(output.get("text", "") for output in outputs)
    assert "[MASK]" in said, "a row of a batch"
    assert "%" in notebook.cells[-1].outputs[0].text
    code = "".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    functions = ("make_tokenizer", "build_shards", "Loader", "pretrain", "finetune", "predict")
    assert all(f"cz.{name}(" in code for name in functions), "Python, not the shell"


def main_of(name):
    """The function that the script calls."""
    return runpy.run_path(str(ROOT / "examples" / name))["main"]


def test_a_pair_is_followed_through_the_model(tmp_path, capsys):
    """The words and the order that the script prints are those of the model's own heads."""
    shards = write_data_set(tmp_path / "shards", train=(20, 12))
    train(shards, tmp_path / "run")
    script = runpy.run_path(str(ROOT / "examples" / "look_inside.py"))
    inside = script["Inside"](str(tmp_path / "run"))
    word = next(t for t in inside.tokenizer.tokens if t.isalpha() and t.islower() and len(t) > 1)
    text, second = f"{word} [MASK] {word}", word
    script["walk"](inside, text, second)
    ids, segments, _ = inside.read(text, second)
    assert segments.tolist() == [0] * 5 + [1] * 2
    assert len(inside.attention) == len(inside.model.encoder.layers) == len(inside.states) - 1
    for weights in inside.attention:
        assert torch.allclose(weights.sum(-1), torch.ones(weights.shape[:2]))
    with torch.no_grad():
        logits, order = inside.model(ids[None], segments[None], None, torch.tensor([[2]]))
    best = inside.tokenizer.tokens[logits[0, 0].argmax()]
    printed = capsys.readouterr().out
    assert f"words      {best} {logits[0, 0].softmax(-1).max():.1%}" in printed
    assert f"random one: {order.softmax(-1)[0, 1]:.1%}" in printed
    script["compare"](inside, word, [f"{word} {word}", f"{word} {word}"])
    assert capsys.readouterr().out.endswith(": 1.00 1.00\n")
    script["draw"](inside, text, second, str(tmp_path / "attention.png"))
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_a_loop_of_ones_own_resumes_with_the_next_example(tmp_path, capsys):
    shards = write_data_set(tmp_path / "shards", train=(20, 12))

    def positions(steps, state):
        main_of("own_training_loop.py")(shards, steps, 8, tmp_path / state)
        lines = capsys.readouterr().out.splitlines()
        assert all(line.startswith("step ") and "loss " in line for line in lines)
        return [line.rpartition(" ")[2] for line in lines]

    assert positions(3, "whole.pt") == ["8", "16", "24"]
    assert positions(2, "part.pt") == ["8", "16"]
    assert positions(3, "part.pt") == ["24"]
    assert positions(1, "part.pt") == []


def test_the_mean_of_checkpoints_is_a_run_that_cannot_be_continued(tmp_path, capsys):
    shards = write_data_set(tmp_path / "shards", train=(40, 30), validation=(20,))
    run, out = tmp_path / "run", tmp_path / "average"
    train(shards, run)  # checkpoints of steps 4, 8 and 12
    average = main_of("average_checkpoints.py")
    average(run, out, last=2)
    assert capsys.readouterr().out.endswith(f"mean of the weights of steps 8, 12: {out}\n")
    eighth, twelfth = (load_weights(folder) for folder in list_checkpoints(run)[1:])
    [checkpoint] = list_checkpoints(out)
    for name, weight in load_weights(checkpoint).items():
        assert torch.equal(weight, ((eighth[name].double() + twelfth[name].double()) / 2).float())
    assert "20 held-out examples" in output_of("evaluate", out, shards)
    assert "cat" in output_of("fill", out, "the [MASK] cat")
    output_of("export", out, "--out", tmp_path / "hf")
    exported = load_pretrained(tmp_path / "hf").weights  # `finetune` reads the same
    assert load_pretrained(out).weights.keys() == exported.keys()
    said = refused("pretrain", shards, "--out", out, "--resume", "--max-steps", 20)
    assert said.startswith(f"{checkpoint} has no optimizer state to continue from; give another")
    with pytest.raises(SystemExit, match="has only 3 checkpoints; give a smaller --last"):
        average(run, tmp_path / "other", last=4)
    with pytest.raises(SystemExit, match=f"{out} exists"):
        average(run, out, last=3)


@contextmanager
def served(classifier):
    """The URL of `examples/serve.py`, in this process."""
    app = runpy.run_path(str(ROOT / "examples" / "serve.py"))["app"](classifier)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def test_a_classifier_is_served(tmp_path):
    classifier = load_classifier(write_small_classifier(tmp_path / "one"))
    with served(classifier) as url:
        answer = ask_once(url, "/classify", {"texts": ["the cat", "a dog", "\ud83d"]})
        assert ask_once(url, "/classify", {"texts": []}).json == {"predictions": []}
        assert ask_once(url, "/health").status == 200
        bad = [
            b"{",
            b"[" * 10_000,
            {"text": "a"},
            {"texts": 5},
            {"texts": [5]},
            {"texts": [["a", 5]]},
        ]
        for body in bad:
            reply = ask_once(url, "/classify", body)
            assert (reply.status, reply.json["error"][:9]) == (400, "send JSON"), body
        reply = ask_once(url, "/classify", {"texts": [["a", "b"]]})
        assert (reply.status, reply.json["error"][:23]) == (400, "text 1 is ['a', 'b'], o")
        assert ask_once(url, "/classify", b" " * 1_000_001).status == 413
    expected = classifier.classify(["the cat", "a dog", "\ufffd"])
    for row, one in zip(expected, answer.json["predictions"], strict=True):
        assert [one["probabilities"][x] for x in classifier.names] == pytest.approx(row.tolist())
        assert one["label"] == classifier.names[int(row.argmax())]
        assert one["probability"] == max(one["probabilities"].values())


SPEEDRUN = ROOT / "examples" / "speedrun" / "speedrun.py"


def speedrun(recipe, *options, code=0):
    """Run the script; one loss is reached at once, one never."""
    words = [f"--folder={recipe.parent}/runs", "--save-every=2", "--target=99", "--target=0.1"]
    line = [sys.executable, SPEEDRUN, recipe, *words, *options]
    done = subprocess.run([*map(str, line)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


@pytest.mark.slow
def test_a_speedrun_says_when_a_recipe_reaches_which_loss(tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(
        'preset = "bert-tiny"\n'
        "[[stage]]\nshards = { max-seq-length = 64 }\n"
        "pretrain = { batch-size = 16, max-steps = 4, word-vectors = true }\n"
        "[[stage]]\nphase = [{ shards = { max-seq-length = 128 }, fraction = 0.5 }]\n"
        "shards = { max-seq-length = 256 }\npretrain = { batch-size = 8, max-steps = 4 }\n"
    )
    first, again, other = (
        speedrun(recipe, "--examples=64", f"--seed={seed}").stdout.splitlines() for seed in "001"
    )
    table = first[-9:]
    assert table == again[-9:]  # a finished recipe costs nothing more
    assert other[-5] != table[4]  # both stages have other seeds
    assert other[-4:] == table[-4:]
    digests = "\n".join(table[-4:]).replace('held-out = "', 'held-out = "0')
    recipe.write_text(f"{digests}\n{recipe.read_text()}")
    changed = speedrun(recipe, "--examples=64", code=1)
    assert changed.stderr.splitlines()[-1].startswith("held-out: digest ")
    assert table[1].startswith("99.00")
    costs = runpy.run_path(str(SPEEDRUN))["_costs"]
    runs = [path for path in (tmp_path / "runs").glob("run-*") if path.is_dir()]
    assert sorted(read_run(run).training.seed for run in runs) == [0, 0, 1, 1]
    first, _, second, _ = sorted(map(costs, runs), key=lambda costs: costs[4].tokens)
    assert first[4].tokens == 4 * 16 * 64
    assert second[2].tokens == 2 * 16 * 128  # the phase before: more rows, as they are shorter
    assert second[4].tokens == 2 * 16 * 128 + 2 * 8 * 256
    assert 0 < second[2].wall < second[4].wall
    assert table[2].split() == ["0.10", "not", "reached"]
    assert table[3].split()[1:2] == ["end"]
    # As on a GPU: by the seconds of the commands, start-up and checkpoints included.
    recipe.write_text(recipe.read_text().replace(digests, ""))
    timed = speedrun(recipe, "--examples=64", "--wall").stdout.splitlines()
    header, reached, _, end, *_ = timed[-9:]
    assert header.split()[-4:] == ["million", "tokens", "PFLOPs", "device"]
    assert (reached.split()[-1], end.split()[-1]) == ("cpu", "cpu")
    files = [run.with_suffix(".json") for run in runs if not read_run(run).training.seed]
    whole = sum(json.loads(file.read_text())["wall"] for file in files)
    assert float(end.split()[2]) == pytest.approx(whole, abs=0.1)


@pytest.mark.parametrize("name", ["nano", "gpu"])
def test_recipes_of_the_speedrun_have_options_that_the_commands_take(name):
    flags = runpy.run_path(str(SPEEDRUN))["_flags"]
    recipe = tomllib.loads((ROOT / "examples" / "speedrun" / f"{name}.toml").read_text())
    for stage in recipe["stage"]:
        line = ["pretrain", "S", "--out=R", "--preset", recipe["preset"], *flags(stage["pretrain"])]
        parse(shlex.join(["clozeline", *map(str, line)]))
        for part in (*stage.get("phase", ()), stage):
            line = ["shards", "T", "--tokenizer=K", "--out=S", *flags(part["shards"])]
            parse(shlex.join(["clozeline", *map(str, line)]))


def test_the_metrics_of_a_run_are_sent_once_and_those_of_a_resumed_one_after_them(
    tmp_path, small_folder
):
    """To whom is the tracker's business: `to_wandb` and `to_mlflow` call what they document."""
    run = train(small_folder, tmp_path / "run", max_steps=3) and tmp_path / "run"
    lines_of = runpy.run_path(str(ROOT / "examples" / "track_run.py"))["lines_of"]
    sent = list(lines_of(run))
    assert [step for step, numbers in sent if "train/mlm_loss" in numbers] == [1, 2, 3]
    assert "heldout/mlm_loss" in sent[-1][1]
    assert all(isinstance(value, int | float) for _, numbers in sent for value in numbers.values())
