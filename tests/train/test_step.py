"""The loss of a step against a straight line: one forward pass, one mean over all masked words."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.model.attention import Packing, position_ids
from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining, Targets
from clozeline.train.data.batch import Batch, LoadedBatch
from clozeline.train.data.unpadded import UnpaddedBatch, with_dummy_rows
from clozeline.train.engine.distributed import World
from clozeline.train.engine.precision import seed_dropout
from clozeline.train.pretraining.run_summary import replica_fits
from clozeline.train.pretraining.step import train_step
from tests.support.small_models import NO_DROPOUT, narrow
from tests.support.small_training import STILL, TINY

SMALL = {"vocab_size": TINY.vocab_size, "max_position_embeddings": 16, **NO_DROPOUT}
KINDS = pytest.mark.parametrize("config", [STILL, preset("nano", **SMALL)], ids=["post", "pre"])
ALONE = World(0, 1, torch.device("cpu"))
MASKED = torch.tensor([4, 1, 3, 4, 1, 1, 2, 1])  # words of each row
FOLLOWS = torch.tensor([0, 1, -1, 1, -1, -1, -1, 0])  # -1: no B


def make_batch():
    """8 rows of 12 tokens, the last one short; rows have unequal numbers of masked words."""
    draw = torch.Generator().manual_seed(0)
    attention_mask = torch.ones(8, 12, dtype=torch.bool)
    attention_mask[-1, 7:] = False
    batch = Batch(
        input_ids=torch.randint(5, TINY.vocab_size, (8, 12), generator=draw),
        token_type_ids=(torch.arange(12) > 5).long().expand(8, 12),
        attention_mask=attention_mask,
        masked_lm_positions=torch.arange(1, 5).expand(8, 4),
        masked_lm_labels=torch.randint(5, TINY.vocab_size, (8, 4), generator=draw),
        masked_lm_weights=(torch.arange(4) < MASKED[:, None]).float(),
        next_sentence_labels=FOLLOWS,
        example_weights=torch.ones(8),
    )
    counts = {"num_tokens": 91, "num_predictions": int(MASKED.sum()), "num_pairs": 4}
    return LoadedBatch(batch=batch, next_position=8, digest=0, **counts)


def forward(model, batch):
    return model(
        batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.masked_lm_positions
    )


def mean_losses(model, batch):
    """Means over what is masked and what has a B, with nothing of ours but the model."""
    mlm_logits, nsp_logits = forward(model, batch)
    is_masked, is_pair = batch.masked_lm_weights > 0, batch.next_sentence_labels >= 0
    mlm = F.cross_entropy(mlm_logits[is_masked], batch.masked_lm_labels[is_masked])
    return mlm, F.cross_entropy(nsp_logits[is_pair], batch.next_sentence_labels[is_pair])


def step(model, loaded=None, *, accumulation=1, precision="fp32", clip=0.0, **options):
    """Sums, norm, and the gradients as the optimizer found them."""
    found = {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(
        lambda *_: found.update({name: p.grad.clone() for name, p in model.named_parameters()})
    )
    options = {"accumulation": accumulation, "precision": precision, "clip": clip, **options}
    sums, norm = train_step(model, optimizer, loaded or make_batch(), world=ALONE, **options)
    return sums, norm, found


def unpadded(batch):
    """The same rows one after the other, made without the loader; packed ones taken apart."""
    mask, is_packed = batch.attention_mask, batch.attention_mask.dtype != torch.bool
    rows, places = mask.nonzero(as_tuple=True)
    is_masked = batch.masked_lm_weights > 0
    starts = F.pad((mask != 0).sum(1).cumsum(0), (1, 0))
    sequences, labels, positions = starts, batch.next_sentence_labels, places
    if is_packed:
        positions = position_ids(mask)[rows, places]
        sequences = F.pad((positions == 0).nonzero()[:, 0], (0, 1), value=len(rows))
        is_first = torch.isin(sequences[:-1], starts)
        labels = torch.full((len(sequences) - 1,), -1).masked_scatter(is_first, labels)
    return UnpaddedBatch(
        input_ids=batch.input_ids[rows, places],
        token_type_ids=batch.token_type_ids[rows, places],
        position_ids=positions,
        cu_seqlens=sequences.int(),
        row_starts=starts.int() if is_packed else None,
        max_seqlen=batch.input_ids.shape[1],
        max_predictions=batch.masked_lm_positions.shape[1],
        masked_lm_positions=(batch.masked_lm_positions + starts[:-1, None])[is_masked],
        masked_lm_labels=batch.masked_lm_labels[is_masked],
        masked_lm_weights=batch.masked_lm_weights[is_masked],
        next_sentence_labels=labels,
        token_offsets=starts.numpy(),
        sequence_offsets=sequences.numpy(),
        masked_offsets=F.pad(is_masked.sum(1).cumsum(0), (1, 0)).numpy(),
    )


#: Lengths of pieces, row by row; what follows the last whole one in 12 tokens is left empty.
PIECES = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=12), min_size=1, max_size=4)


@given(PIECES, st.integers(0, 99))
@settings(max_examples=15)
def test_dummy_rows_of_packed_rows_have_fixed_shapes_and_change_nothing(lengths, seed):
    whole = make_batch().batch.slice(0, len(lengths))
    numbers = [np.repeat(1 + np.arange(len(row)), row)[:12] for row in lengths]
    mask = torch.from_numpy(np.stack([np.pad(row, (0, 12 - len(row))) for row in numbers]))
    draw = torch.Generator().manual_seed(seed)
    is_token = mask.gather(1, whole.masked_lm_positions) > 0
    weights = is_token * torch.randint(2, is_token.shape, generator=draw)
    packed = unpadded(replace(whole, attention_mask=mask, masked_lm_weights=weights.float()))
    filled, size = with_dummy_rows(packed), len(lengths)
    assert (len(filled.input_ids), len(filled.masked_lm_labels)) == (size * 12, size * 4)
    sequences = len(filled.cu_seqlens) - 1
    assert sequences == len(filled.next_sentence_labels)
    assert sequences in {4 * size, 8 * size, 16 * size}
    assert filled.cu_seqlens[-1] == size * 12
    assert 0 <= filled.cu_seqlens.diff().min() <= filled.cu_seqlens.diff().max() <= 12
    config = replace(narrow("modern-nano"), vocab_size=TINY.vocab_size)
    model, found = BertForPretraining(config), []
    for part in (packed, filled):
        packing = Packing(part.position_ids, part.cu_seqlens, part.max_seqlen, part.row_starts)
        inputs = part.input_ids, part.token_type_ids, None, part.masked_lm_positions, packing
        labels = part.masked_lm_labels, part.masked_lm_weights, part.next_sentence_labels
        losses, hits = model(*inputs, Targets(*labels, None), True)
        model.zero_grad()
        losses.sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        found.append({"losses": losses, "hits": hits, **gradients})
    torch.testing.assert_close(found[1], found[0], atol=5e-6, rtol=1e-4)


def norm_of(gradients):
    return torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()


@pytest.mark.parametrize("accumulation", [1, 2, 4, 8])
def test_the_gradient_is_that_of_the_global_mean_however_it_is_accumulated(accumulation):
    model = BertForPretraining(STILL)
    sum(mean_losses(model, make_batch().batch)).backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()

    _, norm, found = step(model, accumulation=accumulation)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-6, rtol=1e-5, msg=name)
    assert norm == pytest.approx(norm_of(wanted).item(), rel=1e-5)


def test_the_sums_are_of_losses_and_hits():
    """With labels of which half are what the model says."""
    model, loaded = BertForPretraining(STILL), make_batch()
    with torch.no_grad():
        mlm_logits, nsp_logits = forward(model, loaded.batch)
    said = torch.arange(8)[:, None] % 2 == 0
    labels = mlm_logits.argmax(-1).where(said, loaded.batch.masked_lm_labels)
    follows = torch.where(FOLLOWS >= 0, nsp_logits.argmax(-1), FOLLOWS)
    batch = replace(loaded.batch, masked_lm_labels=labels, next_sentence_labels=follows)
    mlm, nsp = mean_losses(model, batch)
    words = ((mlm_logits.argmax(-1) == labels) * batch.masked_lm_weights).sum()
    assert words >= MASKED[::2].sum()
    sums, _, _ = step(model, replace(loaded, batch=batch), accumulation=4)
    wanted = torch.stack([mlm.detach() * MASKED.sum(), nsp.detach() * 4, words, torch.tensor(4)])
    torch.testing.assert_close(sums, wanted)


def test_a_batch_without_pairs_trains_on_words_alone():
    loaded = make_batch()
    batch = replace(loaded.batch, next_sentence_labels=torch.full((8,), -1))
    sums, norm, found = step(
        BertForPretraining(STILL), replace(loaded, batch=batch, num_pairs=0), accumulation=2
    )
    assert sums[1] == 0
    assert norm.isfinite()
    assert found["nsp_head.weight"].count_nonzero() == 0


@pytest.mark.parametrize("accumulation", [1, 4])
@KINDS
def test_without_padding_losses_hits_and_gradients_are_the_same(config, accumulation):
    loaded = make_batch()
    wanted, norm, gradients = step(BertForPretraining(config), loaded)
    packed = replace(loaded, batch=unpadded(loaded.batch))
    sums, packed_norm, found = step(BertForPretraining(config), packed, accumulation=accumulation)
    torch.testing.assert_close(sums, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed_norm, norm, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found, gradients, atol=1e-5, rtol=1e-5)


def test_rows_that_are_all_full_need_no_mask():
    loaded, seen = make_batch(), []
    full = replace(loaded.batch, attention_mask=torch.ones(8, 12, dtype=torch.bool))
    for tokens in (96, 95):  # 95: as if a row were short
        model = BertForPretraining(STILL)
        model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[2]))
        sums, _, found = step(model, replace(loaded, batch=full, num_tokens=tokens))
        seen.append((sums, found))
    (no_mask, without, mask, with_mask) = seen
    assert no_mask is None
    assert mask.all()
    torch.testing.assert_close(without, with_mask, atol=1e-5, rtol=1e-5)


def test_clipping_bounds_the_norm_and_tells_it_as_it_was():
    """A norm below the bound is left alone; and no gradient is left behind."""
    model = BertForPretraining(STILL)
    _, free, unclipped = step(model, clip=0.0)
    assert all(parameter.grad is None for parameter in model.parameters())
    _, norm, found = step(BertForPretraining(STILL), clip=0.25)
    assert norm == free > 0.25
    assert norm_of(found) == pytest.approx(0.25, rel=1e-4)
    _, _, same = step(BertForPretraining(STILL), clip=1e6)
    assert all(torch.equal(same[name], gradient) for name, gradient in unclipped.items())


def test_bf16_rounds_products_and_keeps_the_weights():
    wanted, _, _ = step(BertForPretraining(STILL))
    model = BertForPretraining(STILL)
    sums, _, found = step(model, precision="bf16", accumulation=2)
    assert not torch.equal(sums, wanted)
    torch.testing.assert_close(sums[:2], wanted[:2], rtol=1e-2, atol=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}


def test_what_is_dropped_depends_on_seed_step_and_rank_alone():
    def update(*place):
        seed_dropout(*place)
        _, _, found = step(BertForPretraining(TINY), accumulation=2)
        return norm_of(found).item()

    assert update(0, 1, 0) == update(0, 1, 0)
    others = [(0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1), (1, 0, 0)]
    assert len({update(*place) for place in others}) == len(others)


def test_a_model_whose_state_takes_a_third_of_a_gpu_needs_no_shards():
    """16 bytes of a parameter: bert-large on 80 GB, and 2 billion parameters."""
    assert replica_fits(335_000_000, 80 * 10**9)
    assert not replica_fits(2_000_000_000, 80 * 10**9)
