"""Results of an unfinished comparison: whose they are, and that they are what was written."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.classifier_folder import check_room
from clozeline.train.finetuning.results import ModelKey, Result, ResultFolder, is_unfinished
from clozeline.train.finetuning.search import Trial
from clozeline.train.labelled.scores import Correlations, Scores

KEY = ModelKey("pretrained", 4, 0)
NAME = "pretrained-4-0"
TRIAL = Trial(learning_rate=1e-3, epochs=6, rows=4, loss=0.5)
SCORES = Scores.of(("a", "b"), np.array([0, 1]), np.array([0, 1]))
RESULT = Result(key=KEY, scores=SCORES, also={"x": SCORES}, trial=TRIAL, tried=(TRIAL, TRIAL))
WEIGHTS, LOGITS = {"w": torch.arange(4.0)}, np.array([[0.5, -1.0]], dtype=np.float32)
JOB = {"epochs": 1}


def store(out, job=JOB, **how):
    return ResultFolder(out, job, **{"resume": False, "overwrite": False, **how})


def is_there(results, *, is_candidate=True):
    found = results.read(KEY, is_candidate=is_candidate)
    assert found is None or found.to_dict() == RESULT.to_dict()
    return found is not None


def written(out):
    store(out).write(RESULT, WEIGHTS, LOGITS)
    return out / "results"


def test_a_result_is_read_as_it_was_written(tmp_path):
    written(tmp_path)
    again = store(tmp_path, resume=True)
    assert is_there(again)
    weights, logits = again.read_candidate(KEY)
    assert torch.equal(weights["w"], WEIGHTS["w"])
    assert logits.tolist() == [[0.5, -1.0]]


def test_damaged_weights_are_said_and_trained_again(tmp_path, capsys):
    path = written(tmp_path) / f"{NAME}.safetensors"
    data = bytearray(path.read_bytes())
    for damaged in (data[:-3], data[:-1] + bytes([data[-1] ^ 1])):
        path.write_bytes(damaged)
        assert not is_there(store(tmp_path, resume=True))
        said = f"warning: {path} is damaged; the model is trained again.\n"
        assert capsys.readouterr().err == said
    assert is_there(store(tmp_path, resume=True), is_candidate=False)


def test_an_overwriting_comparison_continues_if_it_is_the_same(tmp_path):
    written(tmp_path)
    assert is_unfinished(tmp_path, JOB)
    assert not is_unfinished(tmp_path, {"epochs": 2})
    assert is_there(store(tmp_path, resume=True, overwrite=True))


@pytest.mark.parametrize(("job", "resume"), [({"epochs": 2}, True), (JOB, False)])
def test_overwriting_drops_results_of_another_job_or_without_resume(tmp_path, job, resume):
    written(tmp_path)
    other = store(tmp_path, job, resume=resume, overwrite=True)
    assert not is_there(other, is_candidate=False)


def test_results_of_a_regression_stay(tmp_path):
    """They are all that `clozeline benchmark` leaves of one, and it finds them there again."""
    numbers = np.array([1.0, 2.0, 4.0])
    correlations = Correlations.of(numbers, numbers[::-1].copy())
    store(tmp_path).write(replace(RESULT, scores=correlations, also={}))
    with pytest.raises(InputError, match="holds results of an earlier fine-tuning; add --resume"):
        store(tmp_path)
    found = store(tmp_path, resume=True).read(KEY, is_candidate=False)
    assert found.scores == correlations


def test_results_without_their_job_count_for_nothing(tmp_path):
    (written(tmp_path) / "job.json").unlink()
    check_room(tmp_path, overwrite=False)
    assert not is_there(store(tmp_path), is_candidate=False)


def test_a_folder_of_that_name_may_be_of_others(tmp_path):
    (tmp_path / "results").mkdir()
    check_room(tmp_path, overwrite=False)
    (tmp_path / "results" / "battery.json").touch()
    with pytest.raises(InputError, match=r"is not empty and not a classifier \(results\)"):
        check_room(tmp_path, overwrite=True)


def test_a_file_of_others_among_the_results_is_not_overwritten(tmp_path):
    (written(tmp_path) / "plot.png").touch()
    with pytest.raises(InputError, match=r"files that are not part of .* \(results/plot.png\)"):
        check_room(tmp_path, overwrite=True)


def test_a_file_that_is_no_result_is_refused_in_one_line(tmp_path):
    path = written(tmp_path) / f"{NAME}.json"
    path.write_text(json.dumps({"start": "pretrained"}))
    with pytest.raises(InputError, match=r"cannot be read \(it has no 'scores'\); give --overw"):
        store(tmp_path, resume=True).read(KEY, is_candidate=False)
