"""What the models that the presets come from got wrong, and that it is not so here.

The notebook's masked-word head read the word embeddings, its attention read padding, and half of
its pairs that follow were never used (that is the pipeline's, and tests/test_pairs.py's); the
next-sentence loss of BERT-pytorch passed over class 0; the positions of d2l never learned.
"""

import pytest
import torch

from model.config import PRESETS
from model.heads import next_sentence_loss_sum
from tests.support.small_models import (
    VOCAB,
    batch_of,
    gradients,
    inputs_of,
    loss_of,
    narrow,
    shaken,
)

LEARNED = [name for name in PRESETS if PRESETS[name].has_position_table]
EVERY_PRESET = pytest.mark.parametrize("name", PRESETS)


@EVERY_PRESET
def test_the_head_reads_what_the_encoder_wrote(name):
    """The notebook's read the embeddings: an answer knew one word, the [MASK] it stood for.

    Here it depends on a neighbour that is not masked, and every layer learns from it.
    """
    model = shaken(narrow(name))
    loss_of(model)[0].backward()
    layers = model.encoder.layers
    assert all(p.grad.abs().max() > 0 for p in layers.parameters() if p.dim() == 2)

    batch = batch_of()
    before = model(**batch)[0]
    batch["input_ids"][0, 15] = 7 if batch["input_ids"][0, 15] != 7 else 8
    after = model(**batch)[0]
    assert ((before - after)[0, :, :VOCAB].abs().amax(-1) > 1e-4).all()
    assert torch.equal(before[1:], after[1:])


@EVERY_PRESET
def test_nobody_attends_to_padding(name):
    """The notebook did: what stood behind a text, and how much of it, changed the answer."""
    model, batch = shaken(narrow(name)), inputs_of()
    ids, types, mask = batch.values()
    hidden, pooled = model.encoder(**batch)
    others = (torch.where(mask, ids, 99), torch.where(mask, types, 1), mask)
    longer = [torch.nn.functional.pad(column, (0, 6)) for column in batch.values()]
    for changed in (others, longer):
        found, found_pooled = model.encoder(*changed)
        torch.testing.assert_close(found[:, :24][mask], hidden[mask], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found_pooled, pooled, atol=1e-5, rtol=1e-5)


@EVERY_PRESET
def test_padding_learns_nothing(name):
    """Where padding is attended to, [PAD] learns from every text that is short."""
    model = shaken(narrow(name))
    if model.config.tie_word_embeddings:  # then every row learns as a word of the decoder
        loss_of(model)[1].backward()
    else:
        sum(loss_of(model)).backward()
    table = model.encoder.embeddings.word_embeddings
    assert table.weight.grad[5:].any()
    assert not table.weight.grad[0].any()  # the id at padding, and nowhere else


@EVERY_PRESET
def test_pairs_of_class_0_teach(name):
    """BERT-pytorch had one criterion for both losses; its `ignore_index=0` is meant for words."""
    model = shaken(narrow(name))
    _, logits = model(**batch_of())
    logits.retain_grad()
    loss = next_sentence_loss_sum(logits, torch.zeros(4, dtype=torch.long))
    loss.backward()
    torch.testing.assert_close(loss, -logits.log_softmax(-1)[:, 0].sum())
    assert logits.grad.all()
    assert gradients(model)["nsp_head.weight"].any()


@pytest.mark.parametrize("name", LEARNED)
def test_positions_learn(name):
    """d2l added the `.data` of its positions, and they stayed the random numbers they began as.

    Here each place that a text reaches learns, and no other.
    """
    model = shaken(narrow(name))
    loss_of(model)[0].backward()
    table = model.encoder.embeddings.position_embeddings
    assert (table.weight.grad[:24].abs().amax(-1) > 0).all()
    assert not table.weight.grad[24:].any()
