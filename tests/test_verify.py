"""Verify: every planted problem is found and named, and a sound data set has none."""

import shutil
from dataclasses import replace

import click
import numpy as np
import pytest

from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.dataset.manifest import (
    TOKENIZER,
    read_manifest,
    write_manifest,
)
from clozeline.pipeline.dataset.schema import Examples, concatenate_examples, example_schema
from clozeline.pipeline.dataset.shards import read_shard, shard_name, write_shard
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.tokenization.vocabulary import Normalization
from clozeline.pipeline.verify.verify import summary, verify
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_data import masked
from tests.test_steps import CONFIG, build, work

TOKENIZER_FACTS = small_tokenizer(PUNKT)
CLS, SEP, MASK = TOKENIZER_FACTS.cls_id, TOKENIZER_FACTS.sep_id, TOKENIZER_FACTS.mask_id


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    build(*work(folder))
    return folder / "out"


@pytest.fixture
def data_set(sound, tmp_path):
    """A copy to spoil."""
    return shutil.copytree(sound, tmp_path / "data")


def name_of(folder, number=0):
    return read_manifest(folder).shards[number].name


def plant(folder, spoil, number=0):
    """Spoil the rows of a shard, and make the manifest agree with them."""
    manifest = read_manifest(folder)
    path = folder / manifest.shards[number].name
    examples = spoil(read_shard(path))
    schema = example_schema(manifest.vocab_size, manifest.tokenizer_digest)
    manifest.shards[number] = write_shard(path, examples, schema, format="arrow", compression=None)
    write_manifest(folder, replace(manifest, token_counts=count_tokens(folder, manifest)))


def count_tokens(folder, manifest):
    """How often each token occurs in the training rows, as far as they can be read."""
    counts = np.zeros(manifest.vocab_size, dtype=np.int64)
    for entry in manifest.of_split("train"):
        examples = read_shard(folder / entry.name)
        values = examples.input_ids.values.copy()
        flat = np.minimum(examples.flat_positions(), len(values) - 1)
        values[flat] = examples.masked_lm_labels.values
        counts += np.bincount(values, minlength=2000)[: manifest.vocab_size]
    counts[TOKENIZER_FACTS.is_special] = 0
    return counts.tolist()


def change(column, row, value, *, at=0):
    """A spoiler that sets one value: of a plain column, or of place `at` of a ragged one."""

    def spoil(examples: Examples) -> Examples:
        old = getattr(examples, column)
        if isinstance(old, Ragged):
            values = old.values.copy()
            values[old.offsets[row] + at] = value
            return replace(examples, **{column: Ragged(values, old.offsets)})
        new = old.copy()
        new[row] = value
        return replace(examples, **{column: new})

    return spoil


def remask(examples, *, seed=0, shard=0, config=CONFIG):
    """The same originals under masks of another seed or shard."""
    config = replace(config, seed=seed)
    return masked(
        examples.unmasked(), split="train", shard=shard, config=config, of=TOKENIZER_FACTS
    )


@pytest.mark.parametrize(
    "change",
    [
        {"dupe_factor": 2},
        {"pairs": "sentences", "masking": "whole-words"},
        {"pairs": "sentences", "max_seq_length": 8},
        {"masking": "whole-words", "dupe_factor": 3, "max_seq_length": 16},
        {"pairs": "none", "format": "webdataset"},
        {"pairs": "order", "max_seq_length": 16, "dupe_factor": 2},
        {"pairs": "packed"},
        {"pairs": "packed", "dupe_factor": 2, "masking": "whole-words", "format": "webdataset"},
    ],
)
def test_a_sound_data_set_has_no_findings(tmp_path, change, capsys):
    manifest = build(*work(tmp_path, replace(CONFIG, **change)))
    assert list(verify(tmp_path / "out")) == []
    assert summary(manifest) == (
        f"4 shards with {manifest.num_examples('train'):,} training examples are sound: bytes, "
        "manifest, pairs, masks; not compared with its source; dataset digest "
        f"{manifest.dataset_digest[:12]}"
    )
    source = str(tmp_path / "corpus.txt")
    with click.Context(click.Command("verify")):  # which shows progress
        assert list(verify(tmp_path / "out", [source])) == []
    tokenizing, verifying = capsys.readouterr().err.splitlines()[-2:]  # in a log there is no bar
    assert tokenizing.startswith("tokenizing: 100% ")
    assert verifying.startswith("verifying: 100% 4/4 ")
    assert f"; rebuilt from {source}; " in summary(manifest, [source])


def test_a_limit_that_no_example_comes_near_is_said(data_set):
    manifest = read_manifest(data_set)
    longer = replace(manifest, config=replace(manifest.config, max_seq_length=512))
    longest = 16 * max(len(entry.length_histogram) for entry in manifest.shards)
    said = f"; no example has more than {longest} of max_seq_length 512 tokens; "
    assert said in summary(longer)
    assert "no example" not in summary(manifest)


# ---- files -------------------------------------------------------------------------------------


def test_a_missing_shard(data_set):
    (data_set / name_of(data_set, 1)).unlink()
    assert list(verify(data_set)) == [f"{name_of(data_set, 1)}: missing"]


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
def test_a_changed_byte_wherever_it_is(tmp_path, format):
    # Arrow itself crashes on some of these; verify must not.
    build(*work(tmp_path, replace(CONFIG, format=format)))
    folder = tmp_path / "out"
    path = folder / name_of(folder)
    good = path.read_bytes()
    for place in range(0, len(good), 331):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x80]) + good[place + 1 :])
        assert list(verify(folder)) == [
            f"{path.name}: the file does not have the manifest's sha256"
        ]


def test_a_changed_size(data_set):
    path = data_set / name_of(data_set)
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    expected = f"{path.name}: {size - 1:,} bytes, the manifest says {size:,}"
    assert list(verify(data_set)) == [expected]


def test_swapped_shards_of_equal_size(data_set):
    one, other = (data_set / name_of(data_set, i) for i in (0, 1))
    first = read_shard(one)
    plant(data_set, lambda _: remask(first, shard=0), 0)
    plant(data_set, lambda _: remask(first, shard=1), 1)
    assert list(verify(data_set)) == []
    assert one.stat().st_size == other.stat().st_size
    swapped = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(swapped)
    assert [finding.split(":")[0] for finding in verify(data_set)] == [one.name, other.name]


def test_another_tokenizer(data_set):
    shutil.rmtree(data_set / TOKENIZER)
    flags = Normalization(lowercase=False, strip_accents=False)
    Tokenizer(TOKENIZER_FACTS.tokens, flags, PUNKT).save(data_set / TOKENIZER)
    [finding] = verify(data_set)
    assert load_tokenizer(data_set / TOKENIZER).digest[:12] in finding
    assert TOKENIZER_FACTS.digest[:12] in finding


def test_the_manifest_of_other_rows(data_set):
    manifest = read_manifest(data_set)
    entry = manifest.shards[0]
    for wrong, expected in (
        ({"rows": entry.rows + 1}, f"{entry.rows} rows, the manifest says {entry.rows + 1}"),
        ({"rows_sha256": "0" * 64}, "the rows do not have the manifest's rows_sha256"),
    ):
        shards = [replace(entry, **wrong), *manifest.shards[1:]]
        write_manifest(data_set, replace(manifest, shards=shards))
        assert list(verify(data_set)) == [f"{entry.name}: {expected}"]


def test_a_shard_of_another_schema_version(data_set):
    manifest = read_manifest(data_set)
    entry = manifest.shards[0]
    schema = example_schema(manifest.vocab_size, manifest.tokenizer_digest)
    newer = schema.with_metadata({"clozeline.schema_version": "9"})
    path = data_set / entry.name
    found = write_shard(path, read_shard(path), newer, format="arrow", compression=None)
    shards = [found, *manifest.shards[1:]]
    write_manifest(data_set, replace(manifest, shards=shards))
    [finding] = verify(data_set)
    assert "schema version 9, this code reads 1" in finding


def test_files_that_the_manifest_does_not_name(data_set):
    shutil.copy(data_set / name_of(data_set), data_set / "train-00003-of-00004.arrow")
    shutil.copy(data_set / name_of(data_set), data_set / "validation-00009-of-00010.tar")
    (data_set / "notes.txt").write_text("mine")
    assert list(verify(data_set)) == [
        "train-00003-of-00004.arrow: not in the manifest",
        "validation-00009-of-00010.tar: not in the manifest",
    ]


def test_a_shard_under_the_name_of_another(data_set):
    manifest = read_manifest(data_set)
    renamed = "train-00007-of-00003.arrow"
    (data_set / name_of(data_set)).rename(data_set / renamed)
    shards = [replace(manifest.shards[0], name=renamed), *manifest.shards[1:]]
    write_manifest(data_set, replace(manifest, shards=shards))
    wanted = shard_name("train", 0, 3, "arrow")
    assert list(verify(data_set)) == [
        f"manifest.json: shard 0 of train is named {renamed}, not {wanted}"
    ]


def test_a_manifest_of_other_lengths(data_set):
    manifest = read_manifest(data_set)
    first, entry, *others = manifest.shards
    longer = replace(entry, length_histogram=[*entry.length_histogram, 1])
    write_manifest(data_set, replace(manifest, shards=[first, longer, *others]))
    assert list(verify(data_set)) == [
        f"{entry.name}: the rows do not have the lengths of the manifest's length_histogram"
    ]


def test_a_manifest_of_other_tokens(data_set):
    manifest = read_manifest(data_set)
    counts = list(manifest.token_counts)
    counts[9] += 1
    counts[11] -= 1
    write_manifest(data_set, replace(manifest, token_counts=counts))
    assert list(verify(data_set)) == [
        f"manifest.json: 2 token_counts differ from the rows, the first for id 9: {counts[9]:,}, "
        f"the rows have {counts[9] - 1:,}"
    ]
    write_manifest(data_set, replace(manifest, token_counts=counts[:-1], vocab_size=4))
    assert list(verify(data_set)) == [
        f"manifest.json: vocab_size is 4, the tokenizer's is {TOKENIZER_FACTS.vocab_size}",
        f"manifest.json: {len(counts) - 1} token_counts for {len(counts)} tokens",
    ]


# ---- rows --------------------------------------------------------------------------------------


def random_row(examples):
    return int(np.argmax(examples.next_sentence_label == 1))


def following_row(examples):
    return int(np.argmax(examples.next_sentence_label == 0))


def same_document(examples):
    row = random_row(examples)
    return change("document_b", row, examples.document_a[row])(examples)


def other_document(examples):
    row = following_row(examples)
    return change("document_b", row, examples.document_a[row] + np.uint64(1))(examples)


def masked_sep(examples):
    """The [SEP] of A masked (and kept), in place of the first masked token of the row."""
    positions = examples.masked_lm_positions.values.copy()
    labels = examples.masked_lm_labels.values.copy()
    ids = examples.input_ids.values.copy()
    ids[positions[0]] = labels[0]
    positions[0] = examples.length_a[0] - 1
    labels[0] = SEP
    return replace(
        examples,
        input_ids=Ragged(ids, examples.input_ids.offsets),
        masked_lm_positions=Ragged(positions, examples.masked_lm_positions.offsets),
        masked_lm_labels=Ragged(labels, examples.masked_lm_labels.offsets),
    )


def special_inside(token):
    def spoil(examples):
        return remask(change("input_ids", 0, token, at=2)(examples.unmasked()))

    return spoil


def longer_by(difference):
    def spoil(examples):
        return change("length_a", 0, int(examples.length_a[0]) + difference)(examples)

    return spoil


NO_A = "rows with an empty A, or a length_a beyond the row: 1, the first at "
PROBLEMS = {
    "label that says random": (
        lambda e: change("next_sentence_label", following_row(e), 1)(e),
        "rows with a random B from the document of A: 1",
    ),
    "label that says it follows": (
        lambda e: change("next_sentence_label", random_row(e), 0)(e),
        "rows with a following B from another document: 1",
    ),
    "label of no pair": (
        change("next_sentence_label", 3, -1),
        "rows with a label that does not fit --pairs",
    ),
    "label 7": (
        change("next_sentence_label", 3, 7),
        "rows with an unknown label: 1, the first at 3",
    ),
    "random B of A's document": (same_document, "rows with a random B from the document of A: 1"),
    "following B of another document": (
        other_document,
        "rows with a following B from another document: 1",
    ),
    "A one longer": (longer_by(1), "rows whose A has no [SEP]: 1, the first at 0"),
    "A one shorter": (longer_by(-1), "rows whose A has no [SEP]: 1, the first at 0"),
    "A as long as two rows": (longer_by(60), NO_A),
    "A of nothing": (
        change("length_a", 2, 2),
        NO_A,
    ),
    "B of nothing": (
        lambda e: change("length_a", 0, e.input_ids.lengths[0] - 1)(e),
        "rows with an empty B: 1, the first at 0",
    ),
    "no [CLS]": (change("input_ids", 1, 9), "rows that do not begin with [CLS]: 1, the first at 1"),
    "no last [SEP]": (
        lambda e: change("input_ids", 1, 9, at=e.input_ids.lengths[1] - 1)(e),
        "rows that do not end in [SEP]: 1, the first at 1",
    ),
    "id beyond the vocabulary": (
        change("input_ids", 0, 999, at=1),
        f"rows with ids beyond the vocabulary of {TOKENIZER_FACTS.vocab_size}: 1, the first at 0",
    ),
    "label beyond the vocabulary": (
        change("masked_lm_labels", 0, 999),
        f"rows with ids beyond the vocabulary of {TOKENIZER_FACTS.vocab_size}: 1, the first at 0",
    ),
    "masked [SEP]": (masked_sep, "rows with masked special tokens: 1, the first at 0"),
    "[SEP] inside A": (special_inside(SEP), "rows with special tokens inside A or B: 1"),
    "[MASK] that hides nothing": (
        special_inside(MASK),
        "rows with special tokens inside A or B: 1",
    ),
    "position beyond the row": (
        change("masked_lm_positions", 0, 99),
        "rows with masked positions beyond the row, or without a label: 1, the first at 0",
    ),
    "a position moved": (
        lambda e: change("masked_lm_positions", 0, e.masked_lm_positions.values[0] + 1)(e),
        "rows with masks other than those of the config and the seed",
    ),
    "masks of another seed": (lambda e: remask(e, seed=1), "rows with masks other than"),
    "masks of another shard": (lambda e: remask(e, shard=1), "rows with masks other than"),
    "masks of whole words": (
        lambda e: remask(e, config=replace(CONFIG, masking="whole-words")),
        "rows with masks other than",
    ),
    "no masks": (Examples.unmasked, "rows with masks other than"),
    "rows in another order": (
        lambda e: remask(e.take(np.arange(len(e))[::-1])),
        "rows not in the order of their documents",
    ),
    "a row twice": (
        lambda e: e.take(np.append(np.arange(len(e)), len(e) - 1)),
        "rows with masks other than those of the config and the seed: 1",
    ),
    "positions in another order": (
        lambda e: change("masked_lm_positions", 0, e.masked_lm_positions.values[1])(e),
        "rows whose masked positions are not ascending: 1, the first at 0",
    ),
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_planted_problem_is_named(data_set, problem):
    spoil, message = PROBLEMS[problem]
    plant(data_set, spoil)
    found = list(verify(data_set))
    assert any(line.startswith(f"{name_of(data_set)}: {message}") for line in found), found
    assert {line.split(":")[0] for line in found} == {name_of(data_set)}


def test_rows_longer_than_the_config_allows(data_set):
    manifest = read_manifest(data_set)
    shorter = replace(manifest, config=replace(CONFIG, max_seq_length=8))
    write_manifest(data_set, shorter)
    findings = list(verify(data_set))
    lengths = read_shard(data_set / name_of(data_set)).input_ids.lengths
    wrong = f"{(lengths > 8).sum()}, the first at {np.argmax(lengths > 8)}"
    assert f"{name_of(data_set)}: rows shorter than 3 or longer than 8 tokens: {wrong}" in findings


def test_an_empty_shard_is_sound(data_set):
    plant(data_set, lambda examples: concatenate_examples([examples.take(np.arange(0))]), 2)
    assert list(verify(data_set)) == []
