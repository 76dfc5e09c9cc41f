"""Batches of padded and packed rows against a straight line, and shards that are refused."""

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clozeline.model.attention import Packing
from clozeline.pipeline.common.errors import CorruptDataError
from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest, write_manifest
from clozeline.pipeline.dataset.schema import Examples, concatenate_examples, example_schema
from clozeline.pipeline.dataset.shards import read_shard, write_shard
from clozeline.train.data.batch import Batch, collate, digest_text
from clozeline.train.data.loader import Loader, evaluation_batches
from clozeline.train.data.shard_set import ShardSet, blank_examples
from clozeline.train.data.unpadded import UnpaddedBatch
from clozeline.train.evaluation.evaluate import evaluate
from clozeline.train.monitoring.metrics import read_metrics
from tests.support.small import make_examples, small_tokenizer
from tests.support.small_data import SMALL, packed_examples, write_data_set
from tests.support.small_models import narrow, shaken
from tests.support.small_training import STILL, train

S, P, PAD = 9, 3, 5

ids = st.integers(6, 60_000)
example = st.integers(2, S).flatmap(
    lambda length: st.fixed_dictionaries(
        {
            "ids": st.lists(ids, min_size=length, max_size=length),
            "masks": st.dictionaries(st.integers(0, length - 1), ids, max_size=P),
            "length_a": st.integers(1, length),
            "label": st.integers(-1, 1),
        }
    )
)
examples_and_rows = st.lists(example, min_size=1, max_size=8).flatmap(
    lambda rows: st.tuples(st.just(rows), st.lists(st.integers(0, len(rows) - 1), max_size=12))
)


def concatenate(parts: list[Batch]) -> Batch:
    """All rows of the parts, in order."""
    columns = [part.tensors() for part in parts]
    return Batch(**{name: torch.cat([column[name] for column in columns]) for name in columns[0]})


def concatenate_unpadded(parts: list[UnpaddedBatch]) -> UnpaddedBatch:
    """All rows of the parts, in order; a single part is returned unchanged."""
    if len(parts) == 1:
        return parts[0]
    joined: dict[str, Any] = {
        name: torch.cat([part.tensors()[name] for part in parts]) for name in parts[0].tensors()
    }
    before = offsets_of([part.num_tokens for part in parts]).tolist()
    moved = [part.masked_lm_positions + n for part, n in zip(parts, before, strict=False)]
    joined["masked_lm_positions"] = torch.cat(moved)
    for name in ("token_offsets", "sequence_offsets", "masked_offsets"):
        lengths = [np.diff(getattr(part, name)) for part in parts]
        joined[name] = offsets_of(np.concatenate(lengths))
    joined["cu_seqlens"] = torch.from_numpy(joined["sequence_offsets"].astype(np.int32))
    if parts[0].row_starts is not None:
        joined["row_starts"] = torch.from_numpy(joined["token_offsets"].astype(np.int32))
    return replace(parts[0], **joined)


def ragged(rows):
    flat = np.array([value for row in rows for value in row], dtype=np.uint16)
    return Ragged(flat, offsets_of([len(row) for row in rows]))


def to_examples(rows):
    nobody = np.zeros(len(rows), np.uint64)
    return Examples(
        input_ids=ragged([row["ids"] for row in rows]),
        masked_lm_positions=ragged([sorted(row["masks"]) for row in rows]),
        masked_lm_labels=ragged([[row["masks"][p] for p in sorted(row["masks"])] for row in rows]),
        length_a=np.array([row["length_a"] for row in rows], np.uint16),
        next_sentence_label=np.array([row["label"] for row in rows], np.int8),
        document_a=nobody,
        document_b=nobody,
    )


def reference(row):
    """One example, slot by slot."""
    length, masks = len(row["ids"]), sorted(row["masks"])
    return {
        "input_ids": [row["ids"][s] if s < length else PAD for s in range(S)],
        "token_type_ids": [int(row["length_a"] <= s < length) for s in range(S)],
        "attention_mask": [s < length for s in range(S)],
        "masked_lm_positions": [masks[p] if p < len(masks) else 0 for p in range(P)],
        "masked_lm_labels": [row["masks"][masks[p]] if p < len(masks) else 0 for p in range(P)],
        "masked_lm_weights": [float(p < len(masks)) for p in range(P)],
        "next_sentence_labels": row["label"],
        "example_weights": 1.0,
    }


SIZES = {"max_seq_length": S, "max_predictions": P, "pad_id": PAD}


def make(rows, chosen=None):
    chosen = np.arange(len(rows)) if chosen is None else np.array(chosen, dtype=np.int64)
    return collate(to_examples(rows), chosen, **SIZES)


def random_rows(count):
    rng = np.random.default_rng(count)
    return [
        {
            "ids": rng.integers(6, 60_000, length).tolist(),
            "masks": {int(p): int(rng.integers(6, 60_000)) for p in rng.choice(length, 2, False)},
            "length_a": int(rng.integers(1, length)),
            "label": int(rng.integers(-1, 2)),
        }
        for length in rng.integers(4, S + 1, count)
    ]


@given(examples_and_rows)
def test_every_slot_equals_the_straight_line_reference(given_rows):
    rows, chosen = given_rows
    batch = make(rows, chosen)
    wanted = [reference(rows[i]) for i in chosen]
    types = {"attention_mask": torch.bool, "masked_lm_weights": torch.float32}
    types["example_weights"] = torch.float32
    for name, tensor in batch.tensors().items():
        assert tensor.tolist() == [row[name] for row in wanted], name
        assert tensor.dtype == types.get(name, torch.int64)


def test_ids_over_16_bits_are_kept_and_memory_is_not_shared():
    examples, row = to_examples([{"ids": [7, 8], "masks": {}, "length_a": 2, "label": 1}] * 2), [1]
    wide = replace(examples, input_ids=Ragged(np.full(4, 250_001, np.uint32), offsets_of([2, 2])))
    batch = collate(wide, np.array(row), **SIZES)
    assert batch.input_ids.tolist() == [[250_001, 250_001, *[PAD] * 7]]
    batch.input_ids.fill_(0)
    assert (wide.input_ids.values == 250_001).all()


def test_micro_batches_are_views_that_make_up_the_batch():
    batch = make(random_rows(12))
    for parts in (1, 2, 3, 4, 12):
        micro_batches = batch.split(parts)
        assert {len(micro) for micro in micro_batches} == {12 // parts}
        joined = concatenate(micro_batches).tensors()
        assert all(torch.equal(joined[k], v) for k, v in batch.tensors().items())
    batch.split(2)[1].input_ids[0, 0] = 77
    assert batch.input_ids[6, 0] == 77
    with pytest.raises(AssertionError, match="5 equal parts"):
        batch.split(5)


def test_padding_rows_have_weight_0_and_no_tokens():
    batch = make(random_rows(3))
    with_blank = concatenate_examples(
        [to_examples(random_rows(3)), blank_examples(1, PAD, packed=False)]
    )
    rows = np.array([0, 1, 2, 3, 3])
    padded = collate(with_blank, rows, **SIZES)
    assert padded.num_tokens == batch.num_tokens == sum(len(row["ids"]) for row in random_rows(3))
    assert padded.example_weights.tolist() == [1, 1, 1, 0, 0]
    assert padded.masked_lm_weights[3:].sum() == 0
    assert padded.next_sentence_labels[3:].tolist() == [-1, -1]
    assert padded.input_ids[3:].unique().tolist() == [PAD]
    assert padded.attention_mask.any(1).all()  # softmax over nothing would be NaN
    real = padded.slice(0, 3).tensors()
    assert all(torch.equal(real[name], x) for name, x in batch.tensors().items())


# --- Packed rows in batches and models: attention and positions stay inside each piece ------------
PACKED = DataConfig(max_seq_length=32, num_shards=2, pairs="packed")

#: Rotary with windows, learned, started at neighbours, sinusoids with a segment for padding.
KINDS = ["modern-mini", "bert-mini", "nano", "bert-pytorch-base"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """52 training rows of up to four pieces."""
    out = tmp_path_factory.mktemp("packed")
    return write_data_set(out, train=(30, 22), validation=(9,), config=PACKED)


def loaded(folder, number=1, **options):
    loader = Loader(folder, **{"batch_size": 4, "seed": 0, "prefetch": 0, **options})
    return list(islice(loader, number))


def test_the_mask_of_a_batch_numbers_the_pieces(folder):
    [stored] = evaluation_batches(folder, split="train", batch_size=52)
    shards = [read_shard(folder / entry.name) for entry in read_manifest(folder).of_split("train")]
    rows = [shard.slice(i, i + 1) for shard in shards for i in range(len(shard))]
    assert stored.batch.attention_mask.dtype == torch.int64
    for mask, row in zip(stored.batch.attention_mask.tolist(), rows, strict=True):
        lengths = row.piece_lengths.values
        wanted = np.repeat(1 + np.arange(len(lengths)), lengths).tolist()
        assert mask == wanted + [0] * (32 - len(wanted))


def forward(model, batch):
    """Logits of all masked tokens of a batch in use, in the order of the rows, [M, V]."""
    ids, types, positions = batch.input_ids, batch.token_type_ids, batch.masked_lm_positions
    if isinstance(batch, Batch):
        logits, _ = model(ids, types, batch.attention_mask, positions)
        return logits[batch.masked_lm_weights > 0]
    packing = Packing(batch.position_ids, batch.cu_seqlens, batch.max_seqlen, batch.row_starts)
    logits, nsp = model(ids, types, None, positions, packing)
    assert len(nsp) == len(batch.next_sentence_labels)
    return logits


def pieces_of(batch):
    """The piece of each slot, counted over the whole batch from 1; 0 at padding, [B * S] or [T]."""
    if not isinstance(batch, Batch):
        return (batch.position_ids == 0).cumsum(0)
    rows = torch.arange(len(batch))[:, None]
    return torch.where(batch.attention_mask > 0, 10 * rows + batch.attention_mask, 0).flatten()


def all_positions(batch):
    """The batch with a logit for every token."""
    if not isinstance(batch, Batch):
        return replace(batch, masked_lm_positions=torch.arange(batch.num_tokens))
    slots = torch.arange(batch.input_ids.shape[1]).expand(len(batch), -1)
    weights = (batch.attention_mask > 0).float()
    return replace(batch, masked_lm_positions=slots, masked_lm_weights=weights)


@pytest.mark.parametrize("name", KINDS)
def test_a_piece_in_a_row_gives_what_it_gives_alone(folder, name):
    size = small_tokenizer().vocab_size
    config = replace(narrow(name), vocab_size=size, max_position_embeddings=32)
    model = shaken(config).eval()
    batch = loaded(folder, batch_size=8)[0].batch
    found = forward(model, all_positions(batch))
    without = forward(model, all_positions(loaded(folder, batch_size=8, unpadded=True)[0].batch))
    torch.testing.assert_close(without, found, atol=2e-6, rtol=1e-5)
    start = 0
    for piece in range(1, int(pieces_of(batch).max()) + 1):
        ids = batch.input_ids.flatten()[pieces_of(batch) == piece][None]
        if ids.numel():
            types, every = torch.zeros_like(ids), torch.arange(ids.shape[1])[None]
            alone = model(ids, types, None, every)[0][0]
            there = found[start : start + len(alone)]
            torch.testing.assert_close(there, alone, atol=2e-6, rtol=1e-5)
            start += len(alone)
    assert start == len(found)


def test_the_digests_of_both_layouts_agree_also_split_and_with_new_masks(folder):
    number = 10  # of 8 rows: more than an epoch
    padded, unpadded = (loaded(folder, number, batch_size=8, unpadded=x) for x in (False, True))
    assert [x.digest for x in padded] == [x.digest for x in unpadded]
    assert [x.num_tokens for x in padded] == [x.num_tokens for x in unpadded]
    for rank in range(2):
        half = loaded(folder, number, batch_size=8, unpadded=True, rank=rank, world_size=2)
        for whole, part in zip(unpadded, half, strict=True):
            rows = [whole.batch.slice(row, row + 1) for row in range(rank, 8, 2)]
            wanted = concatenate_unpadded(rows).tensors()
            assert all(torch.equal(part.batch.tensors()[k], x) for k, x in wanted.items())
    ranks = [loaded(folder, number, batch_size=8, rank=rank, world_size=2) for rank in range(2)]
    for whole, *parts in zip(padded, *ranks, strict=True):
        assert digest_text(*(x.digest for x in parts)) == digest_text(whole.digest)


def test_masks_of_later_epochs_are_other_ones_and_never_special(folder):
    tokenizer = small_tokenizer()
    first, second = (x.batch for x in loaded(folder, 2, batch_size=52))
    for batch in (first, second):
        labels = batch.masked_lm_labels[batch.masked_lm_weights > 0]
        assert not torch.from_numpy(tokenizer.is_special)[labels].any()
        pieces = batch.attention_mask.max(1).values.sum()
        assert (batch.input_ids == tokenizer.cls_id).sum() == pieces
    assert sorted(first.input_ids.tolist()) != sorted(second.input_ids.tolist())


def test_pieces_that_do_not_make_up_a_row_are_refused(tmp_path):
    def wrong(*arguments, **options):
        examples = packed_examples(*arguments, **options)
        values = examples.piece_lengths.values.copy()
        values[0] += 1
        return replace(examples, piece_lengths=Ragged(values, examples.piece_lengths.offsets))

    write_data_set(tmp_path, train=(4,), config=PACKED, make=wrong)
    with pytest.raises(CorruptDataError, match="pieces that do not make up their row"):
        loaded(tmp_path)


def test_training_is_the_same_padded_and_unpadded(folder, tmp_path):
    size = STILL.vocab_size
    model = replace(narrow("modern-mini"), vocab_size=size, hidden_size=32, num_attention_heads=2)
    losses = []
    for unpadded in (False, True):
        out = tmp_path / f"run{unpadded}"
        outcome = train(
            folder, out, model=model, unpadded=unpadded, micro_batch_size=4, max_steps=4
        )
        losses.append([line["mlm_loss"] for line in read_metrics(out) if "mlm_loss" in line])
        assert "nsp_loss" not in read_metrics(out)[0]
        again = evaluate(out, folder, split="validation", batch_size=3, limit=None)
        assert again.mlm_loss == pytest.approx(outcome.heldout.mlm_loss, rel=1e-5)
        assert again.examples == 9
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)


# --- Shards that are damaged or cannot be are refused by name -------------------------------------


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_every_wrong_byte_is_noticed_and_its_shard_named(tmp_path, split, format):
    folder = write_data_set(
        tmp_path / "data", train=(30,), validation=(30,), config=replace(SMALL, format=format)
    )
    [path] = folder.glob(f"{split}-*")
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for i in [0, len(whole) - 1, *rng.integers(0, len(whole), 40)]:
        path.write_bytes(whole[:i] + bytes([whole[i] ^ rng.integers(1, 256)]) + whole[i + 1 :])
        with pytest.raises(CorruptDataError, match=f"{path.name} is damaged"):
            ShardSet(folder, split).read(0)


def uint16(values, in_rows=2):
    """A column with as many values in each of 30 rows."""
    return Ragged(np.array(values, np.uint16), np.arange(31) * in_rows)


def masked(*first):
    """Masked positions 2 and 5 in each row but the first."""
    return {"masked_lm_positions": uint16([*first, *[2, 5] * 29])}


#: Of rows [CLS] w w [SEP] w w w [SEP] with two masks.
IMPOSSIBLE = [
    ({"length_a": np.full(30, 9, np.uint16)}, "a length_a that does not fit its row"),
    ({"length_a": np.zeros(30, np.uint16)}, "a length_a that does not fit its row"),
    ({"next_sentence_label": np.full(30, 2, np.int8)}, "that is not -1, 0 or 1"),
    ({"next_sentence_label": np.full(30, -2, np.int8)}, "that is not -1, 0 or 1"),
    (masked(5, 2), "that are not ascending"),
    (masked(5, 5), "that are not ascending"),
    (masked(2, 8), "beyond their row"),
    ({"masked_lm_labels": uint16([6] * 30, 1)}, "more or fewer labels than masked positions"),
]


@pytest.mark.parametrize(("changes", "complaint"), [({}, None), *IMPOSSIBLE])
def test_rows_that_cannot_be_are_refused_although_the_file_is_whole(tmp_path, changes, complaint):
    examples = make_examples([[1, 7, 8, 2, 9, 9, 9, 2]] * 30, length_a=[4] * 30)
    rows = replace(examples, **{**masked(2, 5), "masked_lm_labels": uint16([6] * 60), **changes})
    folder = write_data_set(tmp_path / "data", train=(30,))
    manifest, path = read_manifest(folder), folder / "train-00000-of-00001.arrow"
    schema = example_schema(manifest.vocab_size, manifest.tokenizer_digest)
    entry = write_shard(path, rows, schema, format="arrow", compression=None)
    write_manifest(folder, replace(manifest, shards=[entry]))
    if complaint is None:
        assert len(ShardSet(folder, "train").read(0)) == 30
        return
    with pytest.raises(CorruptDataError, match=rf"is damaged \(.*{complaint}"):
        ShardSet(folder, "train").read(0)
