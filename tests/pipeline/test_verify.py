"""Verify: every planted problem is found and named, and a sound data set has none."""

import shutil
from dataclasses import replace

import click
import numpy as np
import pytest

from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.dataset.manifest import TOKENIZER, read_manifest, write_manifest
from clozeline.pipeline.dataset.schema import Examples, concatenate_examples, example_schema
from clozeline.pipeline.dataset.shards import read_shard, write_shard
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.tokenization.vocabulary import Normalization
from clozeline.pipeline.verify.verify import summary, verify
from tests.pipeline.test_steps import CONFIG, TEXT, build, work
from tests.support.small import PUNKT, small_tokenizer
from tests.support.small_data import masked

SPANS = replace(CONFIG, pairs="none")
TOKENIZER_FACTS = small_tokenizer(PUNKT)
CLS, SEP, MASK = TOKENIZER_FACTS.cls_id, TOKENIZER_FACTS.sep_id, TOKENIZER_FACTS.mask_id


@pytest.fixture(scope="module")
def both_kinds(tmp_path_factory):
    """Data sets of two kinds of pairs, each with its source beside it."""
    folder = tmp_path_factory.mktemp("sound")
    for name, config in (("segments", CONFIG), ("none", SPANS)):
        build(*work(folder / name, config))
    return folder


@pytest.fixture
def data_set(both_kinds, tmp_path):
    """A copy to spoil; its source stays beside it."""
    return shutil.copytree(both_kinds / "segments", tmp_path / "segments") / "out"


@pytest.fixture
def spans(both_kinds, tmp_path):
    return shutil.copytree(both_kinds / "none", tmp_path / "none") / "out"


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
    """A spoiler that sets one value: of a plain column, or of place `at` of a ragged one.

    Row, value and place may be functions of the rows.
    """

    def spoil(examples):
        number, new, place = (x(examples) if callable(x) else x for x in (row, value, at))
        old = getattr(examples, column)
        values = (old.values if isinstance(old, Ragged) else old).copy()
        if isinstance(old, Ragged):
            values[old.offsets[number] + place] = new
            return replace(examples, **{column: Ragged(values, old.offsets)})
        values[number] = new
        return replace(examples, **{column: values})

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
        {"pairs": "sentences", "max_seq_length": 8, "dupe_factor": 2},
        {"masking": "whole-words", "dupe_factor": 3, "max_seq_length": 16},
        {"pairs": "none", "format": "webdataset", "short_seq_prob": 0.5},  # once ignored
        {"pairs": "order", "max_seq_length": 16, "dupe_factor": 2},
        {"pairs": "packed", "dupe_factor": 2, "masking": "whole-words", "format": "webdataset"},
    ],
)
def test_a_sound_data_set_has_no_findings(tmp_path, change, capsys):
    manifest = build(*work(tmp_path, replace(CONFIG, **change)))
    assert verify(tmp_path / "out") == []
    assert summary(manifest) == (
        f"4 shards with {manifest.num_examples('train'):,} training examples are sound: bytes, "
        "manifest, pairs, masks; not compared with its source; dataset digest "
        f"{manifest.dataset_digest[:12]}"
    )
    source = str(tmp_path / "corpus.txt")
    with click.Context(click.Command("verify")):  # which shows progress
        assert verify(tmp_path / "out", [source]) == []
    tokenizing, verifying = capsys.readouterr().err.splitlines()[-2:]  # in a log there is no bar
    assert tokenizing.startswith("tokenizing: 100% ")
    assert verifying.startswith("verifying: 100% 4/4 ")
    assert f"; rebuilt from {source}; " in summary(manifest, [source])


def test_a_shard_that_is_missing_or_cut(data_set):
    first, second = (data_set / name_of(data_set, number) for number in (0, 1))
    size = first.stat().st_size
    first.write_bytes(first.read_bytes()[:-1])
    second.unlink()
    assert verify(data_set) == [
        f"{first.name}: {size - 1:,} bytes, the manifest says {size:,}",
        f"{second.name}: missing",
    ]


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
def test_a_changed_byte_wherever_it_is(tmp_path, format):
    # Arrow itself crashes on some of these; verify must not.
    build(*work(tmp_path, replace(CONFIG, format=format)))
    folder = tmp_path / "out"
    path = folder / name_of(folder)
    good = path.read_bytes()
    for place in range(0, len(good), 331):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x80]) + good[place + 1 :])
        assert verify(folder) == [f"{path.name}: the file does not have the manifest's sha256"]


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
    lengths = entry.length_histogram
    for wrong, expected in (
        ({"rows": entry.rows + 1}, f"{entry.rows} rows, the manifest says {entry.rows + 1}"),
        ({"rows_sha256": "0" * 64}, "the rows do not have the manifest's rows_sha256"),
        (
            {"length_histogram": [*lengths, 1]},
            "the rows do not have the lengths of the manifest's length_histogram",
        ),
    ):
        first = replace(entry, **wrong)
        write_manifest(data_set, replace(manifest, shards=[first, *manifest.shards[1:]]))
        assert verify(data_set) == [f"{entry.name}: {expected}"]


def test_a_manifest_of_other_tokens(data_set):
    manifest = read_manifest(data_set)
    counts = list(manifest.token_counts)
    counts[9] += 1
    counts[11] -= 1
    write_manifest(data_set, replace(manifest, token_counts=counts))
    assert verify(data_set) == [
        f"manifest.json: 2 token_counts differ from the rows, the first for id 9: {counts[9]:,}, "
        f"the rows have {counts[9] - 1:,}"
    ]
    write_manifest(data_set, replace(manifest, token_counts=counts[:-1], vocab_size=4))
    assert verify(data_set) == [
        f"manifest.json: vocab_size is 4, the tokenizer's is {TOKENIZER_FACTS.vocab_size}",
        f"manifest.json: {len(counts) - 1} token_counts for {len(counts)} tokens",
    ]


def random_row(examples):
    return int(np.argmax(examples.next_sentence_label == 1))


def following_row(examples):
    return int(np.argmax(examples.next_sentence_label == 0))


def masked_sep(examples):
    """The [SEP] of A masked (and kept), in place of the first masked token of the row."""
    label, position = (
        getattr(examples, f"masked_lm_{name}").values[0] for name in ("labels", "positions")
    )
    kept = change("input_ids", 0, label, at=position)(examples)
    moved = change("masked_lm_positions", 0, examples.length_a[0] - 1)(kept)
    return change("masked_lm_labels", 0, SEP)(moved)


def last_place(row):
    return lambda examples: examples.input_ids.lengths[row] - 1


def length_a_plus(difference):
    return change("length_a", 0, lambda examples: int(examples.length_a[0]) + difference)


def special_inside(token):
    return lambda examples: remask(change("input_ids", 0, token, at=2)(examples.unmasked()))


BEYOND = f"rows with ids beyond the vocabulary of {TOKENIZER_FACTS.vocab_size}: 1, the first at 0"
OTHER_MASKS = "rows with masks other than those of the config and the seed"
#: What is said, and what was done to the rows.
PROBLEMS = {
    "rows with a random B from the document of A: 1": (
        change("next_sentence_label", following_row, 1),
        change("document_b", random_row, lambda e: e.document_a[random_row(e)]),
    ),
    "rows with a following B from another document: 1": (
        change("next_sentence_label", random_row, 0),
        change(
            "document_b", following_row, lambda e: e.document_a[following_row(e)] + np.uint64(1)
        ),
    ),
    "rows with a label that does not fit --pairs": (change("next_sentence_label", 3, -1),),
    "rows with an unknown label: 1, the first at 3": (change("next_sentence_label", 3, 7),),
    "rows whose A has no [SEP]: 1, the first at 0": (length_a_plus(1), length_a_plus(-1)),
    "rows with an empty A, or a length_a beyond the row: 1, the first at ": (
        length_a_plus(60),
        change("length_a", 2, 2),
    ),
    "rows with an empty B: 1, the first at 0": (change("length_a", 0, last_place(0)),),
    "rows that do not begin with [CLS]: 1, the first at 1": (change("input_ids", 1, 9),),
    "rows that do not end in [SEP]: 1, the first at 1": (
        change("input_ids", 1, 9, at=last_place(1)),
    ),
    BEYOND: (change("input_ids", 0, 999, at=1), change("masked_lm_labels", 0, 999)),
    "rows with masked special tokens: 1, the first at 0": (masked_sep,),
    "rows with special tokens inside A or B: 1": (special_inside(SEP), special_inside(MASK)),
    "rows with masked positions beyond the row, or without a label: 1, the first at 0": (
        change("masked_lm_positions", 0, 99),
    ),
    "rows whose masked positions are not ascending: 1, the first at 0": (
        change("masked_lm_positions", 0, lambda e: e.masked_lm_positions.values[1]),
    ),
    OTHER_MASKS: (
        change("masked_lm_positions", 0, lambda e: e.masked_lm_positions.values[0] + 1),
        lambda e: remask(e, seed=1),
        lambda e: remask(e, shard=1),
        lambda e: remask(e, config=replace(CONFIG, masking="whole-words")),
        lambda e: remask(e, config=replace(CONFIG, masked_lm_prob=0.2)),
        lambda e: remask(e, config=replace(CONFIG, mask_token_prob=0.85, random_token_prob=0.05)),
        Examples.unmasked,
    ),
    f"{OTHER_MASKS}: 1": (lambda e: e.take(np.append(np.arange(len(e)), len(e) - 1)),),  # one twice
    "rows not in the order of their documents": (
        lambda e: remask(e.take(np.arange(len(e))[::-1])),
    ),
}


@pytest.mark.parametrize(
    ("message", "spoil"),
    [(said, spoil) for said, spoilers in PROBLEMS.items() for spoil in spoilers],
)
def test_a_planted_problem_is_named(data_set, message, spoil):
    plant(data_set, spoil)
    found = verify(data_set)
    assert any(line.startswith(f"{name_of(data_set)}: {message}") for line in found), found
    assert {line.split(":")[0] for line in found} == {name_of(data_set)}


# `verify --source`: rows that the sources do not give are named, whatever the manifest says
DOCUMENTS = TEXT.split("\n\n")


def findings_of(out, *sources):
    """The findings for a data set and the corpus beside it, or other sources."""
    return verify(out, sources or [str(out.parent / "corpus.txt")])


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_word_that_is_not_in_the_document(data_set, side):
    def spoil(examples):
        at = 2 if side == "A" else int(examples.length_a[4]) + 1
        ids = examples.unmasked().input_ids
        other = 35 if ids.values[ids.offsets[4] + at] != 35 else 36
        return remask(change("input_ids", 4, other, at=at)(examples.unmasked()))

    plant(data_set, spoil)
    assert findings_of(data_set) == [
        f"{name_of(data_set)}: rows other than the sources give: 1, the first at 4"
    ]
    assert verify(data_set) == []  # without the source nobody can know


def in_order(examples):
    """The rows in the order of their documents, and masked anew."""
    ordered = examples.take(np.argsort(examples.document_a, kind="stable"))
    return remask(ordered, config=SPANS)


def test_the_rows_of_another_document(spans):
    def spoil(examples):
        hashes = examples.document_a.copy()
        hashes[hashes == hashes[0]] = hashes[-1]
        return in_order(replace(examples, document_a=hashes, document_b=hashes))

    plant(spans, spoil)
    start = f"{name_of(spans)}: rows other than the sources give: "
    assert any(line.startswith(start) for line in findings_of(spans))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows, _: rows.take(np.flatnonzero(rows.document_a != rows.document_a[0])),
        lambda rows, first: concatenate_examples([rows, first[1]]),  # of another shard
        lambda rows, first: concatenate_examples([rows, first[3]]),  # of the other split
    ],
)
def test_a_document_that_is_missing_or_belongs_elsewhere(spans, change):
    every = [read_shard(spans / name_of(spans, number)).unmasked() for number in range(4)]
    first = [rows.take(np.arange(1)) for rows in every]
    plant(spans, lambda _: in_order(change(every[0], first)))
    after = len(read_shard(spans / name_of(spans)))
    expected = f"{name_of(spans)}: {after} rows, the sources give {len(every[0])}"
    assert expected in findings_of(spans)


@pytest.mark.parametrize(
    "documents", [DOCUMENTS[1:], [*DOCUMENTS, "the cat sat on mat. the dog slept."]]
)
def test_sources_with_a_document_less_or_more(both_kinds, tmp_path, documents):
    source = tmp_path / "other.txt"
    source.write_text("\n\n".join(documents))
    findings = findings_of(both_kinds / "segments" / "out", str(source))
    assert any(" the sources give " in line for line in findings)
    assert f"manifest.json: counts documents is 60, the sources give {len(documents)}" in findings


@pytest.mark.parametrize("kind", ["segments", "order", "sentences", "none"])
def test_documents_that_need_not_have_a_row(tmp_path, kind):
    """One sentence alone, unknown words alone, and the same text twice."""
    text = "\n\n".join([TEXT, "the cat sat on mat", "Zürich über Köln", DOCUMENTS[7]])
    manifest = build(*work(tmp_path, replace(CONFIG, pairs=kind), text=text))
    assert manifest.dropped["duplicate_document"] == 1
    assert findings_of(tmp_path / "out") == []


def test_counts_of_the_manifest_that_the_source_does_not_give(data_set):
    manifest = read_manifest(data_set)
    counts = {**manifest.counts, "tokens": manifest.counts["tokens"] + 1}
    dropped = {**manifest.dropped, "short_document": 0, "duplicate_document": 2}
    write_manifest(data_set, replace(manifest, counts=counts, dropped=dropped))
    tokens = manifest.counts["tokens"]
    assert findings_of(data_set) == [
        f"manifest.json: counts tokens is {tokens + 1:,}, the sources give {tokens:,}",
        "manifest.json: dropped duplicate_document is 2, the sources give 0",
    ]


def test_a_damaged_shard_is_named_and_the_others_are_compared(data_set):
    first, second = (data_set / name_of(data_set, number) for number in (0, 1))
    plant(data_set, lambda e: remask(change("document_a", 0, 5)(e), shard=1), 1)
    first.write_bytes(first.read_bytes()[:-1])
    findings = findings_of(data_set)
    assert {line.split(":")[0] for line in findings} == {first.name, second.name}
    assert any("rows other than the sources give: " in line for line in findings)
