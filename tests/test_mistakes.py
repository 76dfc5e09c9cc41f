"""Mistakes of the models that the presets come from are not repeated here.

The notebook's masked-LM head read the word embeddings, its attention included padding, and half of
its consecutive pairs were never used (the pipeline's part, in tests/test_pairs.py); the
next-sentence loss of BERT-pytorch ignored class 0; the positions of d2l were never trained.
"""

import pytest
import torch

from clozeline.model.config import PRESETS
from clozeline.model.heads import next_sentence_loss_sum
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
def test_the_head_reads_the_encoders_output(name):
    """The notebook's read the embeddings: a prediction depended on its [MASK] token alone.

    Here it depends on an unmasked neighbour, and every layer gets a gradient from it.
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
def test_no_token_attends_to_padding(name):
    """In the notebook the padding of a text, and its length, changed the output."""
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
def test_padding_gets_no_gradient(name):
    """Where tokens attend to padding, [PAD] gets a gradient from every short text."""
    model = shaken(narrow(name))
    if model.config.tie_word_embeddings:  # then every row has a gradient from the decoder
        loss_of(model)[1].backward()
    else:
        sum(loss_of(model)).backward()
    table = model.encoder.embeddings.word_embeddings
    assert table.weight.grad[5:].any()
    assert not table.weight.grad[0].any()  # the id of padding, which occurs nowhere else


@EVERY_PRESET
def test_pairs_of_class_0_have_a_gradient(name):
    """BERT-pytorch had one criterion for both losses; its `ignore_index=0` is meant for tokens."""
    model = shaken(narrow(name))
    _, logits = model(**batch_of())
    logits.retain_grad()
    loss = next_sentence_loss_sum(logits, torch.zeros(4, dtype=torch.long))
    loss.backward()
    torch.testing.assert_close(loss, -logits.log_softmax(-1)[:, 0].sum())
    assert logits.grad.all()
    assert gradients(model)["nsp_head.weight"].any()


@pytest.mark.parametrize("name", LEARNED)
def test_positions_are_trained(name):
    """d2l added the `.data` of its positions, which therefore kept their random initial values.

    Here each position that a text reaches gets a gradient, and no other.
    """
    model = shaken(narrow(name))
    loss_of(model)[0].backward()
    table = model.encoder.embeddings.position_embeddings
    assert (table.weight.grad[:24].abs().amax(-1) > 0).all()
    assert not table.weight.grad[24:].any()
