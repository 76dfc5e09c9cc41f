"""`clozeline fill` predicts a token for each [MASK] of the user's text."""

import math

import pytest
import torch

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import InputError
from clozeline.train.inference.fill import fill, fill_text, mask_ids, masked_probabilities
from tests.support.small_runs import one_layer, tokenizer_of, write_small_run

TOKENIZER = tokenizer_of("the", "cat", "##s", "sat", "mask", "[", "]", ".")
MODEL = one_layer(TOKENIZER, positions=16)
# The probabilities the fixture's model predicts for every mask; other tokens share the rest.
PROBABILITIES = {"cat": 0.6, "##s": 0.3, "sat": 0.05}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose model predicts the same for every mask: only the decoder bias is not zero."""
    model = BertForPretraining(MODEL)
    rest = (1 - sum(PROBABILITIES.values())) / (TOKENIZER.vocab_size - len(PROBABILITIES))
    probabilities = [PROBABILITIES.get(token, rest) for token in TOKENIZER.tokens]
    with torch.no_grad():
        model.encoder.embeddings.word_embeddings.weight.zero_()  # tied to the decoder
        assert model.mlm_head.bias is not None
        model.mlm_head.bias.copy_(torch.tensor(probabilities).log())
    folder = tmp_path_factory.mktemp("fill") / "run"
    return write_small_run(folder, model, TOKENIZER, max_seq_length=12)


def tokens(text):
    return " ".join(TOKENIZER.tokens[i] for i in mask_ids(text, TOKENIZER, max_seq_length=12))


def test_the_mask_token_is_where_the_user_wrote_it():
    assert tokens("The [MASK] sat.") == "[CLS] the [MASK] sat . [SEP]"
    assert tokens("[MASK]cats[MASK]") == "[CLS] [MASK] cat ##s [MASK] [SEP]"
    assert tokens("[MASK][MASK]") == "[CLS] [MASK] [MASK] [SEP]"


def test_other_special_tokens_remain_text():
    assert tokens("[mask] [MASK] [SEP]") == "[CLS] [ mask ] [MASK] [ [UNK] ] [SEP]"


def test_guesses_come_best_first_with_their_probabilities(run):
    (filled,) = fill(run, ["The [MASK] sat. The [MASK]!"], top=TOKENIZER.vocab_size)
    assert filled.text == "The cat sat. The cat!"
    assert len(filled.guesses) == 2
    for guesses in filled.guesses:
        assert [guess.token for guess in guesses[:3]] == list(PROBABILITIES)
        assert [guess.probability for guess in guesses[:3]] == pytest.approx(
            list(PROBABILITIES.values())
        )
        assert math.fsum(guess.probability for guess in guesses) == pytest.approx(1)


def test_each_mask_is_predicted_at_its_own_position():
    model = BertForPretraining(MODEL, seed=3).eval()
    ids = mask_ids("the [MASK] sat [MASK]", TOKENIZER, max_seq_length=12)
    found = masked_probabilities(model, ids, TOKENIZER.mask_id)
    batch = torch.tensor([ids]), torch.zeros(1, len(ids), dtype=torch.int64), None
    for row, position in enumerate((2, 4)):
        logits, _ = model(*batch, torch.tensor([[position]]))
        torch.testing.assert_close(found[row], logits[0, 0].softmax(-1)[: TOKENIZER.vocab_size])
    assert not torch.allclose(found[0], found[1])


def test_tokens_are_filled_into_the_text():
    filled = fill_text("The [MASK] of [MASK] [MASK].", [" king", " fran", "ce"])
    assert filled == "The king of france."
    assert fill_text("[MASK]", ["s"]) == "s"


@pytest.mark.parametrize(
    ("text", "top", "message"),
    [
        ("the cat", 5, r"no \[MASK\] in 'the cat'; write \[MASK\] where"),
        ("the [mask]", 5, r"no \[MASK\]"),
        ("the " * 10 + "[MASK]", 5, "the text has 13 tokens .* reads at most 12"),
        ("[MASK]", 0, "top is 0; it must be between 1 and 13"),
        ("[MASK]", 14, "top is 14"),
    ],
)
def test_bad_input_is_one_clear_error(run, text, top, message):
    with pytest.raises(InputError, match=message):
        fill(run, [text], top=top)
