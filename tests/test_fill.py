"""A [MASK] of the user's is the token, where the user wrote it."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from model.config import BertConfig
from model.heads import BertForPretraining
from pipeline.common.errors import InputError
from pipeline.tokenization.tokenizer import SPECIAL_TOKENS, Normalization, Tokenizer
from tests.support.small_runs import write_small_run
from train.fill import Guess, fill, mask_ids, masked_probabilities, write_in

TOKENIZER = Tokenizer(
    [*SPECIAL_TOKENS, "the", "cat", "##s", "sat", "mask", "[", "]", "."],
    Normalization(strip_accents=True, lowercase=True),
)
MODEL = BertConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
)
# What the model of the fixture thinks of every mask; all other words share the rest.
BELIEFS = {"cat": 0.6, "##s": 0.3, "sat": 0.05}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model believes the same of every mask, by the decoder's bias alone."""
    model = BertForPretraining(MODEL)
    rest = (1 - sum(BELIEFS.values())) / (TOKENIZER.vocab_size - len(BELIEFS))
    chances = [BELIEFS.get(token, rest) for token in TOKENIZER.tokens]
    with torch.no_grad():
        model.encoder.embeddings.word_embeddings.weight.zero_()  # tied: it is the decoder, too
        assert model.mlm_head.bias is not None
        model.mlm_head.bias.copy_(torch.tensor(chances).log())
    folder = tmp_path_factory.mktemp("fill") / "run"
    return write_small_run(folder, model, TOKENIZER, max_seq_length=12)


def pieces(text: str) -> str:
    return " ".join(TOKENIZER.tokens[i] for i in mask_ids(text, TOKENIZER, max_seq_length=12))


def test_the_mask_stands_where_the_user_wrote_it() -> None:
    assert pieces("The [MASK] sat.") == "[CLS] the [MASK] sat . [SEP]"
    assert pieces("[MASK]cats[MASK]") == "[CLS] [MASK] cat ##s [MASK] [SEP]"
    assert pieces("[MASK][MASK]") == "[CLS] [MASK] [MASK] [SEP]"


def test_other_special_tokens_stay_text() -> None:
    assert pieces("[mask] [MASK] [SEP]") == "[CLS] [ mask ] [MASK] [ [UNK] ] [SEP]"


def test_guesses_come_best_first_with_their_probabilities(run: Path) -> None:
    filled = fill(run, "The [MASK] sat. The [MASK]!", top=3)
    assert filled.text == "The cat sat. The cat!"
    assert len(filled.guesses) == 2
    for guesses in filled.guesses:
        assert [guess.piece for guess in guesses] == list(BELIEFS)
        assert [guess.probability for guess in guesses] == pytest.approx(list(BELIEFS.values()))


def test_all_pieces_together_have_probability_one(run: Path) -> None:
    (guesses,) = fill(run, "[MASK]", top=TOKENIZER.vocab_size).guesses
    assert math.fsum(guess.probability for guess in guesses) == pytest.approx(1)
    assert Guess("the", guesses[-1].probability) in guesses


def test_each_mask_is_answered_at_its_own_place() -> None:
    model = BertForPretraining(MODEL, seed=3).eval()
    ids = mask_ids("the [MASK] sat [MASK]", TOKENIZER, max_seq_length=12)
    found = masked_probabilities(model, ids, TOKENIZER.mask_id)
    batch = torch.tensor([ids]), torch.zeros(1, len(ids), dtype=torch.int64), None
    for row, place in enumerate((2, 4)):
        logits, _ = model(*batch, torch.tensor([[place]]))
        torch.testing.assert_close(found[row], logits[0, 0].softmax(-1)[: TOKENIZER.vocab_size])
    assert not torch.allclose(found[0], found[1])


def test_pieces_are_written_into_the_text() -> None:
    written = write_in("The [MASK] of [MASK] [MASK].", ["king", "fran", "##ce"])
    assert written == "The king of france."
    assert write_in("[MASK]", ["##s"]) == "s"


@pytest.mark.parametrize(
    ("text", "top", "message"),
    [
        ("the cat", 5, r"no \[MASK\] in 'the cat'; write it"),
        ("the [mask]", 5, r"no \[MASK\]"),
        ("the " * 10 + "[MASK]", 5, "the text has 13 tokens .* reads 12 at most"),
        ("[MASK]", 0, "top is 0; it lies between 1 and 13"),
        ("[MASK]", 14, "top is 14"),
    ],
)
def test_bad_input_is_one_clear_error(run: Path, text: str, top: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fill(run, text, top=top)


def test_a_folder_without_a_model_is_an_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no run"):
        fill(tmp_path, "[MASK]")
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(InputError, match="no checkpoint"):
        fill(tmp_path / "run", "[MASK]")
