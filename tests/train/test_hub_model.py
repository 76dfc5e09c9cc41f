"""A model of the Hub by its name: from the local cache, or one line that says how to get it."""

import huggingface_hub.constants
import pytest

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.commandline.hub_model import is_hub_name
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from tests.support.command import output_of, refused
from tests.support.small import small_tokenizer
from tests.support.small_huggingface import save_folder
from tests.support.small_training import TINY


@pytest.mark.parametrize(
    ("given", "is_name"),
    [
        ("bert-base-uncased", True),
        ("answerdotai/ModernBERT-base", True),
        ("nosuch/run", False),
        ("google/bert_uncased_L-2_H-128_A-2", True),
        ("work", False),
        ("here/run", False),
        ("here-bert", False),
        ("a/b/c", False),
        ("./bert-base-uncased", False),
        ("~/bert", False),
        ("bert/vocab.txt", False),
        ("s3://bucket/bert", False),
    ],
)
def test_what_is_on_this_machine_or_looks_like_a_file_is_no_name(
    given, is_name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "here-bert").mkdir()
    assert is_hub_name(given) == is_name


@pytest.mark.parametrize(
    "line",
    [
        ("tokenizer", "--vocab", "bert-x", "--out", "t"),
        ("finetune", "bert-x", "train.csv", "--out", "c"),
        ("pretrain", "--from", "bert-x", "--print-recipe"),
        ("fill", "bert-x", "A [MASK]."),
    ],
)
def test_without_a_network_the_line_says_how_to_download(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused(*line)
    assert said.startswith("bert-x does not exist; check the path. If it is a model of the Hub, ")
    assert "run `hf download bert-x --local-dir DIR` where there is a network, and give" in said


def test_shards_want_a_tokenizer_with_a_sentence_splitter():
    said = refused("shards", "a.txt", "--tokenizer", "bert-x", "--out", "s")
    assert said.endswith("run `clozeline tokenizer --vocab bert-x --out DIR`, and give DIR.")


def test_a_model_in_the_local_cache_is_read(tmp_path, monkeypatch):
    """In the layout that a download leaves."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository, commit = tmp_path / "hub/models--some--tiny-bert", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text(commit)
    folder = repository / "snapshots" / commit
    folder.mkdir(parents=True)
    small_tokenizer().save(folder, max_seq_length=16, has_segments=True)
    save_folder(folder, BertForPretraining(TINY))
    (tmp_path / "a.txt").write_text("A cat sat. A dog ran.\n" * 20)
    words = ("tokenizer", tmp_path / "a.txt", "--vocab", "some/tiny-bert", "--out", tmp_path / "t")
    assert "\n  1  " in output_of("fill", "some/tiny-bert", "A [MASK].")
    output_of(*words)
    assert load_tokenizer(tmp_path / "t").tokens == small_tokenizer().tokens
