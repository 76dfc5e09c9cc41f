"""The loss of a step against a straight line: one forward pass, one mean over all masked words."""

import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from clozeline.model.attention import Packing
from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.train.data.batch import Batch, LoadedBatch
from clozeline.train.data.unpadded import UnpaddedBatch
from clozeline.train.engine.distributed import World
from clozeline.train.engine.precision import seed_dropout
from clozeline.train.pretraining.pretrain import pretrain
from clozeline.train.pretraining.step import train_step
from tests.support.small_training import SHORT, STILL, TINY, assert_same_run, train, weights

SMALL = {
    "vocab_size": TINY.vocab_size,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
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
    return LoadedBatch(
        batch=batch,
        next_position=8,
        num_tokens=91,
        num_predictions=int(MASKED.sum()),
        num_pairs=int((FOLLOWS >= 0).sum()),
        digest=0,
    )


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
    sums, norm = train_step(
        model,
        optimizer,
        loaded or make_batch(),
        world=ALONE,
        accumulation=accumulation,
        precision=precision,
        clip=clip,
        **options,
    )
    return sums, norm, found


def unpadded(batch):
    """The same rows one after the other, made without the loader."""
    lengths = batch.attention_mask.sum(1)
    rows, places = batch.attention_mask.nonzero(as_tuple=True)
    is_masked = batch.masked_lm_weights > 0
    starts = F.pad(lengths.cumsum(0), (1, 0))
    return UnpaddedBatch(
        input_ids=batch.input_ids[rows, places],
        token_type_ids=batch.token_type_ids[rows, places],
        position_ids=places,
        cu_seqlens=starts.int(),
        row_starts=None,
        max_seqlen=batch.input_ids.shape[1],
        masked_lm_positions=(batch.masked_lm_positions + starts[:-1, None])[is_masked],
        masked_lm_labels=batch.masked_lm_labels[is_masked],
        masked_lm_weights=batch.masked_lm_weights[is_masked],
        next_sentence_labels=batch.next_sentence_labels,
        token_offsets=starts.numpy(),
        sequence_offsets=starts.numpy(),
        masked_offsets=F.pad(is_masked.sum(1).cumsum(0), (1, 0)).numpy(),
    )


def packed_forward(model, batch):
    packing = Packing(batch.position_ids, batch.cu_seqlens, batch.max_seqlen)
    ids, types, positions = batch.input_ids, batch.token_type_ids, batch.masked_lm_positions
    return model(ids, types, None, positions, packing)


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


def test_the_mean_of_the_means_of_parts_is_another_objective():
    """So the test above can tell them apart."""
    model, batch = BertForPretraining(STILL), make_batch().batch
    whole, _ = mean_losses(model, batch)
    parts = [mean_losses(model, part)[0] for part in batch.split(4)]
    assert abs(torch.stack(parts).mean() - whole) > 1e-3


def test_the_sums_are_of_losses_and_hits():
    model, loaded = BertForPretraining(STILL), make_batch()
    with torch.no_grad():
        mlm_logits, nsp_logits = forward(model, loaded.batch)
        mlm, nsp = mean_losses(model, loaded.batch)
    is_right = (mlm_logits.argmax(-1) == loaded.batch.masked_lm_labels).float()
    words = (is_right * loaded.batch.masked_lm_weights).sum()
    pairs = (nsp_logits.argmax(-1) == FOLLOWS).sum()
    wanted = torch.stack([mlm * MASKED.sum(), nsp * 4, words, pairs])
    sums, _, _ = step(model, loaded, accumulation=4)
    torch.testing.assert_close(sums, wanted)


def test_hits_are_counted_where_there_is_something_to_hit():
    """With labels that are what the model says, all are hits, and unused slots are none."""
    model, loaded = BertForPretraining(STILL), make_batch()
    with torch.no_grad():
        mlm_logits, nsp_logits = forward(model, loaded.batch)
    batch = replace(
        loaded.batch,
        masked_lm_labels=mlm_logits.argmax(-1),
        next_sentence_labels=torch.where(FOLLOWS >= 0, nsp_logits.argmax(-1), FOLLOWS),
    )
    sums, _, _ = step(model, replace(loaded, batch=batch))
    assert sums[2:].tolist() == [MASKED.sum(), 4]


def test_a_batch_without_pairs_trains_on_words_alone():
    loaded = make_batch()
    batch = replace(loaded.batch, next_sentence_labels=torch.full((8,), -1))
    sums, norm, found = step(
        BertForPretraining(STILL), replace(loaded, batch=batch, num_pairs=0), accumulation=2
    )
    assert sums[1] == 0
    assert norm.isfinite()
    assert found["nsp_head.weight"].count_nonzero() == 0


@pytest.mark.parametrize("accumulation", [1, 2, 4])
@pytest.mark.parametrize("config", [STILL, replace(preset("nano"), **SMALL)], ids=["post", "pre"])
def test_without_padding_losses_hits_and_gradients_are_the_same(config, accumulation):
    loaded = make_batch()
    wanted, norm, gradients = step(BertForPretraining(config), loaded)
    packed = replace(loaded, batch=unpadded(loaded.batch))
    sums, packed_norm, found = step(BertForPretraining(config), packed, accumulation=accumulation)
    torch.testing.assert_close(sums, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed_norm, norm, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found, gradients, atol=1e-5, rtol=1e-5)


@pytest.mark.slow  # importing the compiler
def test_unpadded_batches_of_any_length_are_compiled_twice_at_most():
    """Once for the first length, and once for all."""
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    model = torch.compile(BertForPretraining(STILL), backend=counter)
    loaded, lengths = make_batch(), set()
    for short in (12, 4, 9, 7, 2):
        mask = loaded.batch.attention_mask.clone()
        mask[5:] = torch.arange(12) < short
        part = replace(loaded, batch=unpadded(replace(loaded.batch, attention_mask=mask)))
        lengths.add(part.batch.num_tokens)
        step(model, part)
    assert len(lengths) == 5
    assert counter.frame_count <= 2


def test_a_token_without_padding_sees_its_own_row_and_no_other():
    model, batch = BertForPretraining(STILL), unpadded(make_batch().batch)
    changed = replace(batch, input_ids=batch.input_ids.clone())
    changed.input_ids[12 + 9] = 6  # in the second row; a word that is not masked
    differs = (packed_forward(model, batch)[0] != packed_forward(model, changed)[0]).any(-1)
    assert differs.tolist() == [False] * 4 + [True] + [False] * 12


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


def test_hits_not_asked_for_are_not_counted_and_change_nothing_else():
    sums, norm, found = step(BertForPretraining(STILL), accumulation=2)
    fewer, same_norm, same = step(BertForPretraining(STILL), accumulation=2, count_hits=False)
    assert torch.equal(fewer, torch.cat([sums[:2], torch.zeros(2)]))
    assert norm == same_norm
    assert all(torch.equal(found[name], gradient) for name, gradient in same.items())


def test_clipping_bounds_the_norm_and_tells_it_as_it_was():
    _, free, _ = step(BertForPretraining(STILL), clip=0.0)
    _, norm, found = step(BertForPretraining(STILL), clip=0.25)
    assert norm == free > 0.25
    assert norm_of(found) == pytest.approx(0.25, rel=1e-4)


def test_a_norm_below_the_bound_is_left_alone():
    _, _, free = step(BertForPretraining(STILL), clip=0.0)
    _, _, found = step(BertForPretraining(STILL), clip=1e6)
    assert all(torch.equal(found[name], gradient) for name, gradient in free.items())


def test_a_step_leaves_no_gradient_behind():
    model = BertForPretraining(STILL)
    step(model)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_bf16_rounds_products_and_keeps_the_weights():
    wanted, _, _ = step(BertForPretraining(STILL))
    model = BertForPretraining(STILL)
    sums, _, found = step(model, precision="bf16", accumulation=2)
    assert not torch.equal(sums, wanted)
    torch.testing.assert_close(sums[:2], wanted[:2], rtol=1e-2, atol=0)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {gradient.dtype for gradient in found.values()} == {torch.float32}


@pytest.mark.parametrize("config", [STILL, replace(preset("nano"), **SMALL)], ids=["post", "pre"])
def test_a_bf16_residual_is_what_layers_pass_on(config):
    """Autocast alone leaves it in float32, and the losses are nearly the same."""
    seen, losses = [], []
    for dtype in (None, torch.bfloat16):
        model = BertForPretraining(config)
        model.encoder.residual_dtype = dtype
        for layer in model.encoder.layers:
            layer.register_forward_hook(lambda layer, inputs, x: seen.append((inputs[0], x)))
        losses.append(step(model, precision="bf16")[0])
    dtypes = [{x.dtype for x in pair} for pair in seen]
    half = len(dtypes) // 2
    assert dtypes == [{torch.float32}] * half + [{torch.bfloat16}] * half
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-2, atol=0)


def test_what_is_dropped_depends_on_seed_step_and_rank_alone():
    def update(*place):
        seed_dropout(*place)
        _, _, found = step(BertForPretraining(TINY), accumulation=2)
        return norm_of(found).item()

    assert update(0, 1, 0) == update(0, 1, 0)
    others = [(0, 1, 0), (1, 1, 0), (0, 2, 0), (0, 1, 1), (1, 0, 0)]
    assert len({update(*place) for place in others}) == len(others)


# `--profile` writes a trace and a table, and changes nothing of the training


def test_some_steps_are_profiled(small_folder, tmp_path):
    train(small_folder, tmp_path / "plain", max_steps=6)
    training = replace(SHORT, max_steps=6)
    run = tmp_path / "run"
    pretrain(small_folder, out=run, model=TINY, training=training, profile=2)
    assert_same_run(run, tmp_path / "plain")
    trace = json.loads((run / "profile" / "trace.json").read_text())
    steps = {e["name"] for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")}
    assert steps == {"ProfilerStep#3", "ProfilerStep#4"}
    lines = (run / "profile" / "operations.txt").read_text().splitlines()
    table = [line for line in lines if "aten::" in line or "Optimizer" in line]
    assert 0 < len(table) <= 10  # of the ten operations that took longest
    before = weights(run)
    train(small_folder, run, overwrite=True, max_steps=6)
    assert weights(run) == before
    assert not (run / "profile").exists()
