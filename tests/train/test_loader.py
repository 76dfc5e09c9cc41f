"""The loader's guarantees: batches do not depend on how many processes or workers read them."""

import gc
import json
import subprocess
import sys
import threading
from dataclasses import replace
from hashlib import sha256
from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.dataset.manifest import read_manifest, write_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.examples.masks import MaskRules, mask_examples, mask_keys
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.data import batch_reader
from clozeline.train.data.batch import Batch, collate, digest_text
from clozeline.train.data.loader import Loader, evaluation_batches
from clozeline.train.data.order import Order, RankSlice
from clozeline.train.data.prefetch import prefetched
from tests.support.small import WORDS, small_tokenizer
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_runs import tokenizer_of
from tests.train.test_batch import concatenate

N = 57  # training examples of small_folder
POOL_ROWS = 20  # two pools an epoch
#: Four streams, far more than this data set is worth.
ORDER = {"seed": 3, "pool_rows": POOL_ROWS, "streams": 4}
GLOBAL = 12
STEPS = 20


def load(folder, steps, **options):
    """The first batches of a loader, which is closed then."""
    options = {"batch_size": GLOBAL, **ORDER, "prefetch": 0, **options}
    iterator = iter(Loader(folder, **options))
    batches = list(islice(iterator, steps))
    iterator.close()
    return batches


def rows_of(batches):
    """Each example of the batches as one hashable row of all its values."""
    joined = concatenate([loaded.batch for loaded in batches])
    columns = [tensor.reshape(len(joined), -1).double() for tensor in joined.tensors().values()]
    return [tuple(row) for row in torch.cat(columns, dim=1).tolist()]


def originals(batches):
    """The token ids of each example with its labels put back: [R, S]."""
    joined = concatenate([loaded.batch for loaded in batches])
    ids = joined.input_ids.clone()
    row, slot = joined.masked_lm_weights.nonzero(as_tuple=True)
    ids[row, joined.masked_lm_positions[row, slot]] = joined.masked_lm_labels[row, slot]
    return [tuple(row) for row in ids.tolist()]


def joined(parts, start=None):
    """The global batch of which each rank has a part, its rows in the order of their positions."""
    world_size, rows = len(parts), sum(len(part.batch) for part in parts)
    start = parts[0].next_position - rows if start is None else start
    slices = [RankSlice(rows, rank, world_size) for rank in range(world_size)]
    positions = np.concatenate([x.positions(np.array([start]))[0] for x in slices])
    assert sorted(positions.tolist()) == list(range(start, start + rows))
    by_position = torch.from_numpy(np.argsort(positions))
    together = concatenate([part.batch for part in parts]).tensors()
    batch = Batch(**{name: x[by_position] for name, x in together.items()})
    return replace(parts[0], batch=batch)


def counts(*parts):
    """The position after a global batch, and its counts."""
    [position] = {part.next_position for part in parts}
    names = ("num_tokens", "num_predictions", "num_pairs")
    return position, *(sum(getattr(part, name) for part in parts) for name in names)


@pytest.fixture(scope="module")
def whole(small_folder):
    """The first global batches as one process reads them: more than four epochs."""
    return load(small_folder, STEPS)


def of_ranks(folder, steps, world_size, **options):
    """The batches of `load` as the parts of each rank, with threads and without."""
    loaded = [
        load(folder, steps, rank=rank, world_size=world_size, prefetch=prefetch, **options)
        for rank, prefetch in zip(range(world_size), (3, 0, 1, 2), strict=False)
    ]
    return list(zip(*loaded, strict=True))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_world_size_trains_on_the_same_global_batches(small_folder, whole, world_size):
    steps = zip(whole, of_ranks(small_folder, STEPS, world_size), strict=True)
    for number, (loaded, parts) in enumerate(steps, 1):
        assert_same_batch(loaded, parts, joined(parts))
        assert loaded.next_position == number * GLOBAL
    assert len({loaded.digest for loaded in whole}) == STEPS


def assert_same_batch(loaded, parts, together):
    """Rows and digest of a global batch are those of its parts, and counts those of its rows."""
    assert rows_of([together]) == rows_of([loaded])
    batch, next_position = together.batch, loaded.next_position
    masks, pairs = batch.masked_lm_weights.sum(), (batch.next_sentence_labels >= 0).sum()
    assert counts(*parts) == (next_position, batch.num_tokens, masks, pairs) == counts(loaded)
    assert digest_of(parts) == digest_text(loaded.digest)


def digest_of(parts):
    return digest_text(*(part.digest for part in parts))


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # on few cores
@pytest.mark.parametrize("workers", [1, 3])
def test_a_plain_data_loader_yields_the_same_batches(small_folder, whole, workers):
    loader = Loader(small_folder, batch_size=GLOBAL, **ORDER)
    batches = iter(DataLoader(loader, batch_size=None, num_workers=workers))
    for loaded, wanted in zip(batches, whole, strict=False):
        assert_same_batch(wanted, [loaded], loaded)


def test_a_loader_prints_as_one_line(small_folder):
    loader = Loader(small_folder, batch_size=GLOBAL, rank=1, world_size=2, seed=0)
    assert repr(loader) == (
        f"Loader({small_folder}: {N} examples, batches of {GLOBAL}, rank 1 of 2, next_position=0)"
    )


def test_each_epoch_reads_each_example_once(small_folder, whole):
    everything = set(originals(load(small_folder, 1, batch_size=N)))
    assert len(everything) == N
    rows = originals(whole)
    assert all(set(rows[start : start + N]) == everything for start in range(0, 4 * N, N))


@pytest.mark.parametrize("rows", [(1,), (2, 0, 3)])
def test_a_data_set_smaller_than_a_batch_repeats_epoch_by_epoch(tmp_path, rows):
    folder = write_data_set(tmp_path / "data", train=rows)
    n, found = sum(rows), originals(load(folder, 4))
    assert all(set(found[i : i + n]) == set(found[:n]) for i in range(0, 40, n))
    assert originals(map(joined, of_ranks(folder, 4, 3))) == found


def stored_rows(folder, epoch):
    """The rows of an epoch in the loader's order, read from the shards one by one."""
    manifest = read_manifest(folder)
    rules = MaskRules.of(manifest.config, load_tokenizer(folder / "tokenizer"))
    shards = [read_shard(folder / entry.name) for entry in manifest.of_split("train")]
    if epoch > 0:
        for i, shard in enumerate(shards):
            keys = mask_keys(manifest.config.seed, split="train", shard=i, epoch=epoch)
            rows = np.arange(len(shard))
            keys = np.broadcast_to(keys, len(shard))
            shards[i] = mask_examples(shard.unmasked(), keys=keys, rows=rows, rules=rules)
    order = Order([len(x) for x in shards], dataset_digest=manifest.dataset_digest, **ORDER)
    _, of_shards, rows = order.locate(np.arange(epoch * N, (epoch + 1) * N))
    sizes = {"max_seq_length": 16, "max_predictions": manifest.config.predictions, "pad_id": 0}
    return concatenate(
        [
            collate(shards[shard], np.array([row]), **sizes)
            for shard, row in zip(of_shards.tolist(), rows.tolist(), strict=True)
        ]
    )


@pytest.mark.parametrize("masking", ["tokens", "whole-words"])
def test_epoch_zero_is_as_stored_and_later_masks_equal_a_fresh_draw(tmp_path, masking):
    config = replace(SMALL, masking=masking)
    folder = write_data_set(tmp_path / "data", train=(13, 20, 0, 7, 17), config=config)
    for epoch, loaded in enumerate(load(folder, 3, batch_size=N)):
        wanted = stored_rows(folder, epoch)
        assert all(torch.equal(loaded.batch.tensors()[k], v) for k, v in wanted.tensors().items())


def test_slabs_of_many_batches_and_batches_of_many_slabs_agree(small_folder, monkeypatch):
    monkeypatch.setattr(batch_reader, "SLAB_ROWS", 8)
    one_by_one = load(small_folder, 21, batch_size=1)
    at_once = load(small_folder, 1, batch_size=21)
    assert rows_of(one_by_one) == rows_of(at_once)


def test_evaluation_reads_each_example_once_in_stored_order(small_folder):
    batches = list(evaluation_batches(small_folder, batch_size=6))
    assert [len(loaded.batch) for loaded in batches] == [6, 6, 6, 6]
    weights = torch.cat([loaded.batch.example_weights for loaded in batches])
    assert weights.tolist() == [1.0] * 23 + [0.0]
    assert batches[-1].next_position == 23
    manifest = read_manifest(small_folder)
    shards = [read_shard(small_folder / entry.name) for entry in manifest.of_split("validation")]
    tokens = [row[row != 0] for loaded in batches for row in loaded.batch.input_ids]
    stored = np.concatenate([shard.input_ids.values for shard in shards])
    assert torch.cat(tokens[:23]).tolist() == stored.tolist()


@pytest.mark.parametrize("limit", [None, 1, 7, 24])
def test_every_rank_evaluates_the_same_number_of_equal_shapes(small_folder, limit):
    alone = list(evaluation_batches(small_folder, batch_size=6, limit=limit))
    parts = [
        list(evaluation_batches(small_folder, batch_size=6, rank=r, world_size=3, limit=limit))
        for r in range(3)
    ]
    assert [len(part) for part in parts] == [len(alone)] * 3
    assert {len(loaded.batch) for part in parts for loaded in part} == {2}
    for step, (loaded, *here) in enumerate(zip(alone, *parts, strict=True)):
        assert_same_batch(loaded, here, joined(here, 6 * step))
    examples = sum(float(loaded.batch.example_weights.sum()) for loaded in alone)
    assert examples == min(limit or 23, 23)


def test_a_state_of_another_data_set_tokenizer_or_order_is_refused(tmp_path, small_folder):
    state = Loader(small_folder, batch_size=4, seed=3).state_dict()
    rows = write_data_set(tmp_path / "rows", train=(13, 20))
    tokens = write_data_set(tmp_path / "tokens", train=(13,), tokenizer=tokenizer_of(*WORDS))
    for folder, options, reason in (
        (rows, {}, f"dataset_digest {state['dataset_digest'][:12]} there, .* now. Use"),
        (tokens, {"seed": 5}, "tokenizer_digest .*; dataset_.*; seed 3 there, 5 now"),
        (small_folder, {"seed": 4}, "at position 0 in the same order of examples: seed 3 there"),
        (small_folder, {"split": "validation"}, "split 'train' there, 'validation' now"),
    ):
        loader = Loader(folder, batch_size=4, **{"seed": 3, **options})
        with pytest.raises(InputError, match=reason):
            loader.load_state_dict(state)
        assert loader.next_position == 0


@pytest.mark.parametrize("name", ["version", "order_version"])
@pytest.mark.parametrize("found", [3, None])
def test_a_state_of_another_version_is_refused(small_folder, name, found):
    loader = Loader(small_folder, batch_size=4, seed=3)
    state = loader.state_dict(8) | {name: found}
    with pytest.raises(InputError, match=f"version {found}, this code reads [12]; continue"):
        loader.load_state_dict({k: v for k, v in state.items() if v is not None})
    assert loader.next_position == 0


def test_a_state_is_json_with_all_that_decides_the_next_example(small_folder):
    loader = Loader(small_folder, batch_size=4, seed=3)
    manifest = read_manifest(small_folder)
    assert json.loads(json.dumps(loader.state_dict(8))) == {
        "version": 1, "order_version": 2, "streams": 1, "pool_rows": 262_144, "next_position": 8,
        "tokenizer_digest": manifest.tokenizer_digest, "dataset_digest": manifest.dataset_digest,
        "split": "train", "seed": 3, "masking": None, "length_bins": 0, "batch_size": None,
    }  # fmt: skip


@pytest.mark.parametrize("length_bins", [0, 2])
def test_other_defaults_do_not_reorder_a_resumed_run(small_folder, length_bins):
    """From the middle of an epoch and window: the state's numbers, not the new loader's."""
    options = {"batch_size": GLOBAL, "length_bins": length_bins}
    before = load(small_folder, STEPS, **options)
    state = Loader(small_folder, **ORDER, **options).state_dict(3 * GLOBAL)
    resumed = Loader(small_folder, seed=3, pool_rows=9, streams=2, **options)
    other = [loaded.digest for loaded in islice(resumed, STEPS)]
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert [x.digest for x in islice(resumed, STEPS - 3)] == [x.digest for x in before[3:]]
    assert other != [loaded.digest for loaded in before]
    found = resumed.state_dict()
    assert (found["pool_rows"], found["streams"]) == (POOL_ROWS, 4)


#: Of steps 0 to 4, 9 and 11 of small_folder, which cross epochs and pools.
STEPS_OF_GOLDEN = (0, 1, 2, 3, 4, 9, 11)
#: By length bins.
GOLDEN = {
    0: "32038a49460d057c 97339262447add0d 51dedadbf4a81253 7bb660ab9dd8b09b "
    "0d805c2a177e9e0c 4464a37f89360d6f e0f432b27622e201",
    4: "1b2bfff0d2a61119 4a5963b4f963b735 a3a34f0908b5fb9c 9148d4c45f37a519 "
    "6da3ff4e315a6a04 dfe402a7ea496427 5935bfa25dd848b4",
}
GOLDEN_CONTENT = "663b679e1f2144fb82b2b1b438a1c59b69b574deb197de21686a9ae79fa32baa"


@pytest.mark.parametrize("length_bins", GOLDEN)
def test_the_data_digests_never_change(small_folder, length_bins):
    batches = load(small_folder, 12, length_bins=length_bins)
    digests = [digest_text(batches[step].digest) for step in STEPS_OF_GOLDEN]
    assert digests == GOLDEN[length_bins].split()


def test_the_rows_of_a_position_never_change(whole):
    batches = [whole[step].batch.tensors().values() for step in STEPS_OF_GOLDEN]
    tensors = b"".join(tensor.numpy().tobytes() for batch in batches for tensor in batch)
    assert sha256(tensors).hexdigest() == GOLDEN_CONTENT


def other_tokenizer(folder):
    (folder / "tokenizer").rename(folder / "old")
    small_tokenizer({"another": 1}).save(folder / "tokenizer")


SECOND = "train-00001-of-00002.arrow"


@pytest.mark.parametrize(
    ("rows", "spoil", "complaint"),
    [
        ((5,), other_tokenizer, "is not the tokenizer of these shards"),
        ((0, 0), lambda folder: None, "has no train examples"),
        ((30, 30), lambda folder: (folder / SECOND).unlink(), f"{SECOND} is missing .1 of 2"),
    ],
    ids=["tokenizer", "empty", "missing shard"],
)
def test_a_data_set_that_cannot_be_is_refused_before_anything_is_read(
    rows, spoil, complaint, tmp_path
):
    folder = write_data_set(tmp_path / "data", train=rows)
    spoil(folder)
    with pytest.raises(InputError, match=complaint):
        Loader(folder, batch_size=4, seed=0)
    with pytest.raises(InputError, match=r"has no validation examples|not the tokenizer|missing"):
        evaluation_batches(folder, batch_size=4)


@pytest.mark.parametrize(
    ("batch_size", "world_size", "fitting"), [(10, 4, "8 or 12"), (2, 3, "3"), (0, 2, "2")]
)
def test_a_batch_size_that_does_not_divide_suggests_those_that_do(
    small_folder, batch_size, world_size, fitting
):
    with pytest.raises(InputError, match=f"processes; use {fitting}\\."):
        Loader(small_folder, batch_size=batch_size, world_size=world_size, seed=0)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "has .* bytes, the manifest"),
        (lambda path: path.write_bytes(b"\0" * path.stat().st_size), "is damaged"),
    ],
    ids=["cut", "zeros"],
)
def test_a_bad_shard_is_named_also_by_the_thread_that_reads_it(tmp_path, spoil, complaint):
    folder = write_data_set(tmp_path / "data", train=(30, 30))
    spoil(folder / SECOND)
    with pytest.raises(InputError, match=f"{SECOND} {complaint}"):
        load(folder, 5, prefetch=2)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"rows": 31}, "30 rows, the manifest says 31"),
        ({"vocab_size": 9}, "token id .*, the highest possible is 8"),
        ({"max_seq_length": 12}, "row length 16"),
        ({"max_predictions_per_seq": 1}, "masks in a row 2"),
    ],
)
def test_a_shard_that_differs_from_the_manifest_is_named(tmp_path, change, complaint):
    folder = write_data_set(tmp_path / "data", train=(30,))
    manifest = read_manifest(folder)
    if "rows" in change:
        change = {"shards": [replace(manifest.shards[0], **change)]}
    elif "vocab_size" not in change:
        change = {"config": replace(manifest.config, **change)}
    write_manifest(folder, replace(manifest, **change))
    with pytest.raises(InputError, match=f"train-00000-of-00001.arrow is damaged .{complaint}"):
        load(folder, 1)


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_the_thread_ends_when_the_iterator_is_closed_or_collected(small_folder):
    loader = Loader(small_folder, batch_size=GLOBAL, seed=0)
    closed, dropped, in_a_cycle = iter(loader), iter(loader), [iter(loader)]
    in_a_cycle.append(in_a_cycle)
    for iterator in (closed, dropped, in_a_cycle[0]):
        next(iterator)
    assert len(prefetch_threads()) == 3
    closed.close()
    assert len(prefetch_threads()) == 2
    del dropped, iterator
    assert len(prefetch_threads()) == 1
    del in_a_cycle
    gc.collect()
    assert not prefetch_threads()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_prefetching_is_bounded_closes_what_it_reads_and_changes_neither_items_nor_errors(depth):
    made, closed = [], threading.Event()

    def items():
        try:
            for i in range(20):
                made.append(i)
                yield i
            raise LookupError("after twenty")
        finally:
            closed.set()

    found = prefetched(items(), depth)
    assert next(found) == 0
    found.close()
    assert closed.is_set()
    assert len(made) <= 1 + depth + 2  # consumed, queued, and one on either side of the queue
    found = prefetched(items(), depth)
    assert list(islice(found, 20)) == list(range(20))
    with pytest.raises(LookupError, match="after twenty"):
        next(found)
    assert list(prefetched((i for i in range(7)), depth)) == list(range(7))
    assert not prefetch_threads()


def test_iterators_that_are_not_closed_end_with_their_process(small_folder):
    code = f"""
from clozeline.train.data.loader import Loader, evaluation_batches
from clozeline.train.data.prefetch import prefetched

batches = iter(Loader({str(small_folder)!r}, batch_size=8, seed=0)), evaluation_batches(
    {str(small_folder)!r}, batch_size=8)
list(map(next, batches))

def items():
    try:
        while True:
            yield 1
    finally:
        print("closed")

unclosed = prefetched(items(), 2)
next(unclosed)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "closed\n", "")
