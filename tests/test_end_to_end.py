"""The whole road on a little of the built-in sample, by the commands a user types."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORPUS = "sample:articles?size=400KB sample:reviews?rows=400"


def clozeline(folder: Path, line: str) -> str:
    """What the command prints; it must succeed."""
    run = subprocess.run(
        [sys.executable, "-m", "train", *shlex.split(line.format(folder))],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    """Where everything was made, and what each command printed."""
    folder = tmp_path_factory.mktemp("road")
    lines = {
        "tokenizer": f"tokenizer {CORPUS} --vocab-size 1000 --out {{0}}/tokenizer",
        "shards": f"shards {CORPUS} --tokenizer {{0}}/tokenizer --out {{0}}/shards --workers 1"
        " --max-seq-length 64 --num-shards 2 --validation 0.1",
        "verify": "verify {0}/shards",
        "inspect": "inspect {0}/shards -n 1",
        "pretrain": "pretrain {0}/shards --out {0}/run --max-steps 30 --batch-size 16 --dropout 0",
        "evaluate": "evaluate {0}/run {0}/shards --limit 64",
        "finetune": "finetune {0}/run 'sample:reviews?rows=400&start=9000' --out {0}/classifier"
        " --test 'sample:reviews?rows=200&start=8000' --text title --text-pair content",
        "predict": "predict {0}/classifier 'It broke after a day.' 'I love it.'",
        "fill": "fill {0}/run 'The town is in the [MASK] of the country.' --top 2",
    }
    return folder, {name: clozeline(folder, line) for name, line in lines.items()}


def test_every_stage_says_in_its_last_line_what_it_made(road):
    folder, said = road
    assert f"1,000 pieces, Punkt trained on the sources: {folder}/tokenizer" in said["tokenizer"]
    assert f"training examples in 2 shards: {folder}/shards" in said["shards"]
    assert "3 shards and" in said["verify"]
    assert "are sound" in said["verify"]
    assert f"step 30 of 30: {folder}/run" in said["pretrain"]
    assert f": {folder}/classifier" in said["finetune"]


def test_an_example_can_be_read(road):
    shown = road[1]["inspect"]
    assert "MASK]" in shown
    assert "  hidden   1 " in shown


def test_what_was_learned_stands_beside_its_yardsticks(road):
    folder, said = road
    assert "64 held-out examples" in said["evaluate"]
    assert "unigram" in said["evaluate"]
    report = json.loads((folder / "classifier" / "report.json").read_text())
    assert 0 <= report["finetuned"]["accuracy"] <= 1
    assert report["bag_of_words"]["accuracy"] > 0.6


def test_answers_come_a_line_each(road):
    said = road[1]
    predictions = [line.split("\t") for line in said["predict"].splitlines()]
    assert [fields[2] for fields in predictions] == ["It broke after a day.", "I love it."]
    assert {fields[0] for fields in predictions} <= {"0", "1"}
    first, guesses = said["fill"].splitlines()
    assert first.startswith("The town is in the")  # a piece such as "##s" goes on with the word
    assert guesses.count("%") == 2


def test_a_second_call_finds_everything_complete(road):
    folder, _ = road
    again = clozeline(folder, f"shards {CORPUS} --tokenizer {{0}}/tokenizer --out {{0}}/shards"
                      " --max-seq-length 64 --num-shards 2 --validation 0.1")  # fmt: skip
    assert again.startswith("already complete: ")
    again = clozeline(
        folder, "pretrain {0}/shards --out {0}/run --max-steps 30 --batch-size 16 --dropout 0"
    )
    assert again.startswith("already complete: ")
