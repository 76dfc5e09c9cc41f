"""`verify --source`: rows that the sources do not give are named, whatever the manifest says."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.dataset.manifest import read_manifest, write_manifest
from clozeline.pipeline.dataset.schema import concatenate_examples
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.verify.verify import verify
from tests.support.small import make_examples
from tests.test_steps import CONFIG, TEXT, build, work
from tests.test_verify import change, name_of, plant, remask

SPANS = replace(CONFIG, pairs="none")
DOCUMENTS = TEXT.split("\n\n")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Data sets of two kinds of pairs, each with its source beside it."""
    folder = tmp_path_factory.mktemp("sound")
    for name, config in (("segments", CONFIG), ("none", SPANS)):
        build(*work(folder / name, config))
    return folder


@pytest.fixture
def data_set(sound, tmp_path):
    """Copies to spoil."""
    return shutil.copytree(sound, tmp_path / "data")


def findings_of(folder, *sources):
    """The findings for OUT and the corpus beside it, or other sources."""
    return list(verify(folder / "out", sources or [str(folder / "corpus.txt")]))


def rows_of(examples):
    """Unmasked rows as lists."""
    ids = examples.unmasked().input_ids
    return [ids.slice(i, i + 1).values.tolist() for i in range(len(ids))]


def with_row(examples, number, ids, length_a, *, config=CONFIG):
    """The tokens of a row replaced by others, and everything masked again."""
    row = make_examples(
        [ids],
        length_a=[length_a],
        labels=[examples.next_sentence_label[number]],
        documents=examples.document_a[number : number + 1],
    )
    row = replace(row, document_b=examples.document_b[number : number + 1])
    originals, numbers = examples.unmasked(), np.arange(len(examples))
    parts = [originals.take(numbers[:number]), row, originals.take(numbers[number + 1 :])]
    return remask(concatenate_examples(parts), config=config)


def short_following_row(examples):
    """A row whose pair follows and was not cut."""
    follows = examples.next_sentence_label == 0
    return int(np.argmax(follows & (examples.input_ids.lengths < CONFIG.max_seq_length)))


def test_a_corpus_in_parts_and_in_another_order_is_the_same_source(sound, tmp_path):
    halves = DOCUMENTS[30:], DOCUMENTS[:30]
    for number, half in enumerate(halves):
        (tmp_path / f"{number}.txt").write_text("\n\n".join(half))
    sources = [str(tmp_path / "0.txt"), str(tmp_path / "1.txt")]
    assert findings_of(sound / "segments", *sources) == []


# ---- rows that the rules allow and the source does not give ------------------------------------


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_word_that_is_not_in_the_document(data_set, side):
    folder = data_set / "segments"

    def spoil(examples):
        position = 2 if side == "A" else int(examples.length_a[4]) + 1
        ids = examples.unmasked().input_ids
        values = ids.values.copy()
        values[ids.offsets[4] + position] = 35 if values[ids.offsets[4] + position] != 35 else 36
        return remask(replace(examples.unmasked(), input_ids=Ragged(values, ids.offsets)))

    plant(folder / "out", spoil)
    [finding] = findings_of(folder)
    name = name_of(folder / "out")
    assert finding == f"{name}: rows other than the sources give: 1, the first at 4"
    assert list(verify(folder / "out")) == []  # without the source nobody can know


def test_the_rows_of_another_document(data_set):
    folder = data_set / "none"

    def spoil(examples):
        hashes = examples.document_a.copy()
        hashes[hashes == hashes[0]] = hashes[-1]
        changed = replace(examples, document_a=hashes, document_b=hashes)
        order = np.argsort(hashes, kind="stable")
        return remask(changed.take(order), config=SPANS)

    plant(folder / "out", spoil)
    start = f"{name_of(folder / 'out')}: rows other than the sources give: "
    assert any(line.startswith(start) for line in findings_of(folder))


def test_a_pair_that_is_cut_although_there_was_room(data_set):
    folder = data_set / "segments"
    examples = read_shard(folder / "out" / name_of(folder / "out"))
    row = short_following_row(examples)
    ids, length_a = rows_of(examples)[row], int(examples.length_a[row])
    del ids[length_a - 2]
    plant(folder / "out", lambda e: with_row(e, row, ids, length_a - 1))
    [finding] = findings_of(folder)
    assert finding.endswith(f": rows other than the sources give: 1, the first at {row}")


def test_a_b_that_precedes_a(data_set):
    folder = data_set / "segments"
    examples = read_shard(folder / "out" / name_of(folder / "out"))
    row = short_following_row(examples)
    ids, length_a = rows_of(examples)[row], int(examples.length_a[row])
    swapped = [ids[0], *ids[length_a:], *ids[1:length_a]]
    plant(folder / "out", lambda e: with_row(e, row, swapped, len(ids) - length_a + 1))
    [finding] = findings_of(folder)
    assert finding.endswith(f": rows other than the sources give: 1, the first at {row}")


def test_a_shard_that_lost_the_rows_of_a_document(data_set):
    folder = data_set / "none"
    before = len(read_shard(folder / "out" / name_of(folder / "out")))
    plant(
        folder / "out",
        lambda e: remask(e.take(np.flatnonzero(e.document_a != e.document_a[0])), config=SPANS),
    )
    after = len(read_shard(folder / "out" / name_of(folder / "out")))
    assert list(verify(folder / "out")) == []
    findings = findings_of(folder)
    assert f"{name_of(folder / 'out')}: {after} rows, the sources give {before}" in findings


# ---- documents that do not belong there --------------------------------------------------------


def moved_row(folder, source, target):
    """A row of one shard put into another one, in the order of the documents."""
    out = folder / "out"
    row = read_shard(out / name_of(out, source)).unmasked().take(np.arange(1))

    def spoil(examples):
        both = concatenate_examples([examples.unmasked(), row])
        return remask(both.take(np.argsort(both.document_a, kind="stable")), config=SPANS)

    plant(out, spoil, target)
    return name_of(out, target)


def test_a_held_out_document_in_training(data_set):
    folder = data_set / "none"
    name = moved_row(folder, 3, 0)
    [finding] = findings_of(folder)
    assert finding.startswith(f"{name}: rows whose A is from a document of validation: 1, the ")


def test_a_document_of_another_shard(data_set):
    folder = data_set / "none"
    name = moved_row(folder, 1, 0)
    [finding] = findings_of(folder)
    assert finding.startswith(f"{name}: rows whose A is from a document of another shard: 1, the")


def test_a_document_of_no_source(data_set):
    folder = data_set / "segments"
    (folder / "less.txt").write_text("\n\n".join(DOCUMENTS[1:]))
    findings = findings_of(folder, str(folder / "less.txt"))
    assert any("rows whose A is from a document in no source: " in line for line in findings)
    assert "manifest.json: counts documents is 60, the sources give 59" in findings


def test_a_document_of_the_source_without_rows(data_set):
    folder = data_set / "segments"
    (folder / "more.txt").write_text(TEXT + "\n\nthe cat sat on mat. the dog slept.")
    findings = findings_of(folder, str(folder / "more.txt"))
    assert any("rows, the sources give " in line for line in findings)
    assert "manifest.json: counts documents is 60, the sources give 61" in findings


@pytest.mark.parametrize("kind", ["segments", "order", "sentences", "none"])
def test_documents_that_need_not_have_a_row(tmp_path, kind):
    """One sentence alone, unknown words alone, and the same text twice."""
    text = "\n\n".join([TEXT, "the cat sat on mat", "Zürich über Köln", DOCUMENTS[7]])
    manifest = build(*work(tmp_path, replace(CONFIG, pairs=kind), text=text))
    assert manifest.dropped["duplicate_document"] == 1
    assert findings_of(tmp_path) == []


# ---- the manifest, files and folders -----------------------------------------------------------


def test_counts_of_the_manifest_that_the_source_does_not_give(data_set):
    folder = data_set / "segments"
    manifest = read_manifest(folder / "out")
    counts = {**manifest.counts, "tokens": manifest.counts["tokens"] + 1}
    dropped = {**manifest.dropped, "short_document": 0, "duplicate_document": 2}
    write_manifest(folder / "out", replace(manifest, counts=counts, dropped=dropped))
    tokens = manifest.counts["tokens"]
    assert findings_of(folder) == [
        f"manifest.json: counts tokens is {tokens + 1:,}, the sources give {tokens:,}",
        "manifest.json: dropped duplicate_document is 2, the sources give 0",
    ]


def test_a_damaged_shard_is_named_and_the_others_are_compared(data_set):
    folder = data_set / "segments"
    first, second = (folder / "out" / name_of(folder / "out", number) for number in (0, 1))
    plant(folder / "out", lambda e: remask(change("document_a", 0, 5)(e), shard=1), 1)
    first.write_bytes(first.read_bytes()[:-1])
    findings = findings_of(folder)
    assert {line.split(":")[0] for line in findings} == {first.name, second.name}
    assert any("from a document in no source: 1, the first at 0" in line for line in findings)


def test_a_source_that_does_not_exist(sound):
    with pytest.raises(InputError, match=r"nothing\.txt"):
        findings_of(sound / "none", "nothing.txt")


def test_nothing_is_left_in_the_temporary_folder(sound, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert findings_of(sound / "none") == []
    assert list(tmp_path.iterdir()) == []
