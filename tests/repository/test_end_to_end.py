"""Every stage on a little of the built-in sample, by the commands a user types."""

import json
import shlex

import pytest
from click.testing import CliRunner

from clozeline.train.cli import main

CORPUS = "sample:articles?size=400KB sample:reviews?rows=400"
LINES = {
    "tokenizer": f"tokenizer {CORPUS} --vocab-size 1000 --out {{0}}/tokenizer",
    "shards": f"shards {CORPUS} --tokenizer {{0}}/tokenizer --out {{0}}/shards --workers 1"
    " --max-seq-length 64 --num-shards 2 --validation 0.1",
    "verify": "verify {0}/shards",
    "inspect": "inspect {0}/shards -n 1",
    "pretrain": "pretrain {0}/shards --out {0}/run --preset bert-tiny --max-steps 10"
    " --batch-size 16 --dropout 0",
    "evaluate": "evaluate {0}/run {0}/shards --limit 64",
    "finetune": "finetune {0}/run 'sample:reviews?rows=400&start=9000' --out {0}/classifier"
    " --test 'sample:reviews?rows=200&start=8000' --text title --text-pair content"
    " --learning-rate 1e-3 --epochs 1",
    "predict": "predict {0}/classifier 'It broke after a day.' 'I love it.'",
    "fill": "fill {0}/run 'The town is in the [MASK] of the country.' --top 2",
}


def clozeline(folder, stage):
    """Output of a command that must succeed."""
    result = CliRunner().invoke(main, shlex.split(LINES[stage].format(folder)))
    assert result.exit_code == 0, (result.stderr, result.exception)
    return result.stdout


@pytest.fixture(scope="module")
def stages(tmp_path_factory):
    """The folder with all results, and the output of each command."""
    folder = tmp_path_factory.mktemp("stages")
    return folder, {stage: clozeline(folder, stage) for stage in LINES}


def test_the_last_line_of_each_stage_states_the_result(stages):
    folder, printed = stages
    assert printed["tokenizer"].startswith("1,000 ")
    assert printed["tokenizer"].endswith(f": {folder}/tokenizer\n")
    assert f"training examples in 2 shards: {folder}/shards" in printed["shards"]
    assert "3 shards with" in printed["verify"]
    assert "are sound" in printed["verify"]
    assert "MASK]" in printed["inspect"]
    assert "  masked   1 " in printed["inspect"]
    assert f"step 10 of 10: {folder}/run" in printed["pretrain"]
    assert f": {folder}/classifier" in printed["finetune"]


def test_results_are_printed_next_to_their_baselines(stages):
    folder, printed = stages
    assert "64 held-out examples" in printed["evaluate"]
    assert "unigram" in printed["evaluate"]
    report = json.loads((folder / "classifier" / "report.json").read_text())
    assert f"accuracy {report['finetuned']['accuracy']:.4f}: " in printed["finetune"]
    assert f"bag-of-words  accuracy {report['bag_of_words']['accuracy']:.4f}" in printed["finetune"]
    assert report["bag_of_words"]["accuracy"] > 0.6


def test_predictions_are_printed_one_per_line(stages):
    printed = stages[1]
    predictions = [line.split("\t") for line in printed["predict"].splitlines()]
    assert [fields[2] for fields in predictions] == ["It broke after a day.", "I love it."]
    assert {fields[0] for fields in predictions} <= {"negative", "positive"}
    first, guesses = printed["fill"].splitlines()
    assert first.startswith("The town is in the")  # a token such as "##s" continues the word
    assert guesses.count("%") == 2


def test_a_second_call_finds_everything_complete(stages):
    for stage in ("shards", "pretrain"):
        assert clozeline(stages[0], stage).startswith("already complete: ")
