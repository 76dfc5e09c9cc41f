"""A run's folder: what is written comes back, and what does not fit is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.checksums import file_sha256
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import sealed, unsealed
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import Manifest
from clozeline.train.artifacts.checkpoint import latest_checkpoint, load_weights
from clozeline.train.artifacts.run import (
    RunConfig,
    load_run,
    model_config,
    write_run,
    write_summary,
)
from tests.support.small import small_tokenizer
from tests.support.small_runs import write_small_run
from tests.support.small_training import TINY
from tests.support.training_configs import training_config

MANIFEST = Manifest(
    config=DataConfig(max_seq_length=96, text_columns=("title", "text")),
    tokenizer_digest="c" * 64,
    vocab_size=1000,
    shards=[],
)
CONFIG = RunConfig.of(TINY, training_config(schedule="wsd"), MANIFEST, Path("shards"))


def test_differences_are_told_by_name_with_both_values():
    other = replace(
        CONFIG,
        model=replace(TINY, hidden_size=64, pooler=False),
        training=replace(CONFIG.training, batch_size=32),
        dataset_digest="0123456789abcdef",
    )
    assert other.differences(CONFIG, "model") == [
        "hidden_size 32 there, 64 now",
        "pooler True there, False now",
    ]
    here = MANIFEST.dataset_digest[:12]
    assert other.differences(CONFIG, "training", "dataset_digest", "tokenizer_digest") == [
        "batch_size 128 there, 32 now",
        f"dataset_digest {here} there, 0123456789ab now",
    ]
    assert CONFIG.differences(CONFIG, "model", "training", "data", "dataset_digest") == []


def test_a_preset_is_fitted_to_the_data():
    config = model_config("nano", MANIFEST)
    assert (config.vocab_size, config.max_position_embeddings) == (1000, 96)
    shorter = replace(MANIFEST, config=DataConfig(max_seq_length=32))
    assert model_config("nano", shorter).max_position_embeddings == 64  # never cut


@pytest.mark.parametrize(
    ("name", "dropout", "complaint"),
    [
        ("bert-hugh", None, "unknown preset 'bert-hugh'; known: nano, micro, bert-tiny, "),
        ("nano", 1.0, "hidden_dropout_prob is 1.0; give 0 or more, below 1."),
        ("nano", -0.1, "hidden_dropout_prob is -0.1; give 0 or more, below 1."),
    ],
)
def test_an_impossible_model_is_refused(name, dropout, complaint):
    with pytest.raises(InputError, match=complaint):
        model_config(name, MANIFEST, dropout=dropout)


def small_run(folder):
    model = BertForPretraining(TINY, seed=5)
    return write_small_run(folder, model, small_tokenizer(), max_seq_length=16), model


def test_a_run_needs_nothing_but_its_folder(tmp_path):
    run, model = small_run(tmp_path / "run")
    config, tokenizer, weights = load_run(run.rename(tmp_path / "moved"))
    assert config.model == TINY
    assert tokenizer.digest == small_tokenizer().digest
    assert weights.keys() == model.state_dict().keys()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_a_run_that_goes_on_is_not_complete_any_more(tmp_path):
    write_run(tmp_path, CONFIG, small_tokenizer())
    write_summary(tmp_path, 9, {"mlm_loss": 2.5})
    facts = {"step": 9, "heldout": {"mlm_loss": 2.5}}
    assert unsealed(json.loads((tmp_path / "summary.json").read_text())) == facts
    write_run(tmp_path, CONFIG, small_tokenizer())
    assert not (tmp_path / "summary.json").exists()


def test_a_run_without_a_checkpoint_is_refused(tmp_path):
    tokenizer = small_tokenizer()
    write_run(tmp_path, replace(CONFIG, tokenizer_digest=tokenizer.digest), tokenizer)
    with pytest.raises(InputError, match="has no checkpoint yet"):
        load_run(tmp_path)


def test_another_tokenizer_in_a_run_is_refused(tmp_path):
    run, _ = small_run(tmp_path)
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(sealed({**facts, "tokenizer_digest": "f" * 64})))
    with pytest.raises(InputError, match=r"not the tokenizer .*\(digest \w{12}, expected f{12}\)"):
        load_run(run)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    run, _ = small_run(tmp_path)
    folder = latest_checkpoint(run)
    spoiled = load_weights(folder)
    spoiled["nsp_head.bias"][0] = torch.nan
    save_file(spoiled, folder / "model.safetensors")
    state = json.loads((folder / "state.json").read_text())
    state["files"]["model.safetensors"] = file_sha256(folder / "model.safetensors")
    (folder / "state.json").write_text(json.dumps(sealed(state)))
    with pytest.raises(InputError, match=r"weights that are not finite \(nsp_head.bias\)"):
        load_run(run)
