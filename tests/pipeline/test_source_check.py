"""`verify --source`: rows that the sources do not give are named, whatever the manifest says."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.dataset.manifest import read_manifest, write_manifest
from clozeline.pipeline.dataset.schema import concatenate_examples
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.verify.verify import verify
from tests.pipeline.test_steps import CONFIG, TEXT, build, work
from tests.pipeline.test_verify import change, name_of, plant, remask
from tests.support.small import WORDS

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
def segments(sound, tmp_path):
    """A copy to spoil; its source stays beside it."""
    return shutil.copytree(sound / "segments", tmp_path / "segments") / "out"


@pytest.fixture
def spans(sound, tmp_path):
    return shutil.copytree(sound / "none", tmp_path / "none") / "out"


def findings_of(out, *sources):
    """The findings for a data set and the corpus beside it, or other sources."""
    return list(verify(out, sources or [str(out.parent / "corpus.txt")]))


def test_a_corpus_in_parts_and_in_another_order_is_the_same_source(sound, tmp_path):
    halves = DOCUMENTS[30:], DOCUMENTS[:30]
    for number, half in enumerate(halves):
        (tmp_path / f"{number}.txt").write_text("\n\n".join(half))
    sources = [str(tmp_path / "0.txt"), str(tmp_path / "1.txt")]
    assert findings_of(sound / "segments" / "out", *sources) == []


def test_an_earlier_version_did_not_count_examples_without_masks(tmp_path):
    text = "\n\n".join(" ".join([f"{word}ing"] * 9) for word in WORDS[:9])  # two tokens each
    config = replace(SPANS, masking="whole-words", max_predictions_per_seq=1)
    manifest = build(*work(tmp_path, config, text=text))
    for counted in (8, 0):
        counts = manifest.counts | {"without_masks": counted}
        counts = {name: count for name, count in counts.items() if count}
        write_manifest(tmp_path / "out", replace(manifest, counts=counts))
        found = ["manifest.json: counts without_masks is 8, the sources give 9"] if counted else []
        assert findings_of(tmp_path / "out") == found


# ---- rows that the rules allow and the source does not give ------------------------------------


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_word_that_is_not_in_the_document(segments, side):
    def spoil(examples):
        at = 2 if side == "A" else int(examples.length_a[4]) + 1
        ids = examples.unmasked().input_ids
        other = 35 if ids.values[ids.offsets[4] + at] != 35 else 36
        return remask(change("input_ids", 4, other, at=at)(examples.unmasked()))

    plant(segments, spoil)
    assert findings_of(segments) == [
        f"{name_of(segments)}: rows other than the sources give: 1, the first at 4"
    ]
    assert list(verify(segments)) == []  # without the source nobody can know


def test_the_rows_of_another_document(spans):
    def spoil(examples):
        hashes = examples.document_a.copy()
        hashes[hashes == hashes[0]] = hashes[-1]
        changed = replace(examples, document_a=hashes, document_b=hashes)
        return remask(changed.take(np.argsort(hashes, kind="stable")), config=SPANS)

    plant(spans, spoil)
    start = f"{name_of(spans)}: rows other than the sources give: "
    assert any(line.startswith(start) for line in findings_of(spans))


def test_a_shard_that_lost_the_rows_of_a_document(spans):
    before = len(read_shard(spans / name_of(spans)))
    plant(
        spans,
        lambda e: remask(e.take(np.flatnonzero(e.document_a != e.document_a[0])), config=SPANS),
    )
    after = len(read_shard(spans / name_of(spans)))
    assert list(verify(spans)) == []
    assert f"{name_of(spans)}: {after} rows, the sources give {before}" in findings_of(spans)


# ---- documents that do not belong there --------------------------------------------------------


@pytest.mark.parametrize(("shard", "home"), [(3, "validation"), (1, "another shard")])
def test_a_document_that_belongs_elsewhere(spans, shard, home):
    """A row of one shard put into another one, in the order of the documents."""
    row = read_shard(spans / name_of(spans, shard)).unmasked().take(np.arange(1))

    def spoil(examples):
        both = concatenate_examples([examples.unmasked(), row])
        return remask(both.take(np.argsort(both.document_a, kind="stable")), config=SPANS)

    plant(spans, spoil)
    [finding] = findings_of(spans)
    said = f"{name_of(spans)}: rows whose A is from a document of {home}: 1, the first at "
    assert finding.startswith(said)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (DOCUMENTS[1:], "rows whose A is from a document in no source: "),
        ([*DOCUMENTS, "the cat sat on mat. the dog slept."], "rows, the sources give "),
    ],
)
def test_sources_with_a_document_less_or_more(sound, tmp_path, documents, message):
    source = tmp_path / "other.txt"
    source.write_text("\n\n".join(documents))
    findings = findings_of(sound / "segments" / "out", str(source))
    assert any(message in line for line in findings)
    assert f"manifest.json: counts documents is 60, the sources give {len(documents)}" in findings


@pytest.mark.parametrize("kind", ["segments", "order", "sentences", "none"])
def test_documents_that_need_not_have_a_row(tmp_path, kind):
    """One sentence alone, unknown words alone, and the same text twice."""
    text = "\n\n".join([TEXT, "the cat sat on mat", "Zürich über Köln", DOCUMENTS[7]])
    manifest = build(*work(tmp_path, replace(CONFIG, pairs=kind), text=text))
    assert manifest.dropped["duplicate_document"] == 1
    assert findings_of(tmp_path / "out") == []


# ---- the manifest, files and folders -----------------------------------------------------------


def test_counts_of_the_manifest_that_the_source_does_not_give(segments):
    manifest = read_manifest(segments)
    counts = {**manifest.counts, "tokens": manifest.counts["tokens"] + 1}
    dropped = {**manifest.dropped, "short_document": 0, "duplicate_document": 2}
    write_manifest(segments, replace(manifest, counts=counts, dropped=dropped))
    tokens = manifest.counts["tokens"]
    assert findings_of(segments) == [
        f"manifest.json: counts tokens is {tokens + 1:,}, the sources give {tokens:,}",
        "manifest.json: dropped duplicate_document is 2, the sources give 0",
    ]


def test_a_damaged_shard_is_named_and_the_others_are_compared(segments):
    first, second = (segments / name_of(segments, number) for number in (0, 1))
    plant(segments, lambda e: remask(change("document_a", 0, 5)(e), shard=1), 1)
    first.write_bytes(first.read_bytes()[:-1])
    findings = findings_of(segments)
    assert {line.split(":")[0] for line in findings} == {first.name, second.name}
    assert any("from a document in no source: 1, the first at 0" in line for line in findings)


def test_a_source_that_does_not_exist(sound):
    with pytest.raises(InputError, match=r"nothing\.txt"):
        findings_of(sound / "none" / "out", "nothing.txt")


def test_nothing_is_left_in_the_temporary_folder(sound, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert findings_of(sound / "none" / "out") == []
    assert list(tmp_path.iterdir()) == []
