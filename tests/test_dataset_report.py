"""The report: its numbers are those of the rows, and its page needs and runs nothing else."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace
from html.parser import HTMLParser

import numpy as np
import pytest

from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.dataset.manifest import read_manifest, write_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.report.charts import draw_lines, draw_points
from clozeline.pipeline.report.html import Section, Table, printable
from clozeline.pipeline.report.row_statistics import PARTS, RowStatistics, count_rows
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, Normalization
from clozeline.pipeline.view.site import REPORT, Site, Tab
from clozeline.train.view.view import make_site
from tests.support.command import invoke, refused
from tests.support.small import make_examples, small_tokenizer
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_jobs import ROOT
from tests.test_inspect import example

TOKENIZER = small_tokenizer()
HOSTILE = (
    *("<script>alert(1)</script>", "</pre>", "<img src=x>", "&amp;", "]]>", "{{x}}", "$x^2$"),
    *("'\"", "url(#a)", 'id="a"', "\u202eabc", "\x00", "日本", "😀", "##" + "w" * 60),
)
VOID = {"meta", "br", "img", "link", "hr", "input"}
#: What makes a browser fetch, run or leave.
LOADING = {"src", "href", "xlink:href", "srcset", "data", "action", "poster", "background"}


class Parsed(HTMLParser):
    """A page taken apart: tags must be closed in the order in which they were opened."""

    def __init__(self, html):
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str]] = []
        self.text: Counter[str] = Counter()  # of each innermost element
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and data.strip():
            self.text[data.strip()] += 1
            if self.open[-1] in ("td", "th"):
                self.rows[-1][-1] += data

    def row(self, head):
        """The cells beside a first cell, the last of this name."""
        return next(row[1:] for row in reversed(self.rows) if row[0] == head)


def page_text(folder):
    make_site([folder]).export(folder.parent / "page.html")
    return (folder.parent / "page.html").read_text()


def rows_of(folder, split=None):
    """Every row in plain Python: ids, positions, labels, length of A, kind."""
    found = []
    for entry in read_manifest(folder).shards:
        examples = read_shard(folder / entry.name)
        for row in range(len(examples)) if split in (None, entry.split) else ():
            one = examples.take(np.array([row]))
            found.append(
                (
                    one.input_ids.values.tolist(),
                    one.masked_lm_positions.values.tolist(),
                    one.masked_lm_labels.values.tolist(),
                    int(one.length_a[0]),
                    int(one.next_sentence_label[0]),
                )
            )
    return found


@pytest.fixture(scope="module")
def html(small_folder):
    """The page of 57 + 23 rows, one shard without any."""
    return page_text(small_folder)


@pytest.fixture
def data_set(small_folder, tmp_path):
    """A copy to write into."""
    return shutil.copytree(small_folder, tmp_path / "data")


# --- the numbers ----------------------------------------------------------------------------------


def test_a_pair_is_counted_token_by_token():
    shown = example(
        "[CLS] the [MASK] sat on the [UNK] . [SEP] it dog ran [SEP]",
        hidden={2: "cat", 10: "slept", 11: "ran"},
        length_a=9,
        label=1,
    )
    counted = count_rows(shown, 16, TOKENIZER)
    assert np.flatnonzero(counted.lengths).tolist() == [13]
    assert np.flatnonzero(counted.lengths_a).tolist() == [7]
    assert np.flatnonzero(counted.lengths_b).tolist() == [3]
    assert np.flatnonzero(counted.maskable_at).tolist() == [1, 2, 3, 4, 5, 7, 9, 10, 11]
    assert np.flatnonzero(counted.masked_at).tolist() == [2, 10, 11]
    assert np.flatnonzero(counted.masked_along).tolist() == [3, 15, 16]  # 20 * 2 // 13, ...
    assert counted.shown_as.tolist() == [1, 1, 1]
    assert counted.labels.tolist() == [0, 0, 1]
    assert counted.unknown.tolist() == [1]
    assert (counted.rows, counted.tokens, counted.negative_share) == (1, 13, 1.0)
    assert counted.fill_rate == 13 / 16


def test_the_counts_of_parts_add_up_to_those_of_the_whole(small_folder):
    entry = read_manifest(small_folder).shards[1]
    examples = read_shard(small_folder / entry.name)
    parts = [examples.take(np.arange(start, stop)) for start, stop in ((0, 0), (0, 7), (7, 20))]
    whole, added = count_rows(examples, 16, TOKENIZER), RowStatistics.empty(16)
    for part in parts:
        added += count_rows(part, 16, TOKENIZER)
    for field in fields(RowStatistics):
        np.testing.assert_array_equal(getattr(added, field.name), getattr(whole, field.name))
    assert added.maskable_along.shape == (PARTS,)


def test_the_numbers_of_the_page_are_those_of_the_rows(small_folder, html):
    page, rows = Parsed(html), rows_of(small_folder)
    train, width = rows_of(small_folder, "train"), SMALL.max_seq_length
    tokens = sum(len(ids) for ids, *_ in rows)
    filled = sum(len(ids) for ids, *_ in train) / (len(train) * width)
    assert page.text[small_folder.name] == 2  # title and heading
    assert page.text[f"{tokens:,}"]
    assert page.text[f"{filled:.1%}"]
    assert any(f"fill {filled:.1%} in train" in text for text in page.text)

    masked = Counter()
    for ids, positions, labels, *_ in rows:
        for position, label in zip(positions, labels, strict=True):
            is_mask, is_label = ids[position] == TOKENIZER.mask_id, ids[position] == label
            masked["[MASK]" if is_mask else "itself" if is_label else "another"] += 1
    number = masked.total()
    for name, head in (("[MASK]", "[MASK]"), ("another", "a random token")):
        assert page.row(head)[:2] == [f"{masked[name]:,}", f"{masked[name] / number:.1%}"]
    assert page.row("the token itself")[0] == f"{masked['itself']:,}"
    assert any(text.startswith(f"{number:,} tokens are masked, ") for text in page.text)

    for split in ("train", "validation"):
        kinds = Counter(kind for *_, kind in rows_of(small_folder, split))
        share = f"{kinds[1] / (kinds[0] + kinds[1]):.2%}"
        assert page.row(split) == [*(f"{kinds[kind]:,}" for kind in (-1, 0, 1)), share]


def test_every_shard_has_its_row(small_folder, html):
    page = Parsed(html)
    for entry in read_manifest(small_folder).shards:
        examples = read_shard(small_folder / entry.name)
        pairs = examples.next_sentence_label[examples.next_sentence_label >= 0]
        assert page.row(entry.name) == [
            f"{len(examples):,}",
            f"{len(examples.input_ids.values):,}",
            f"{(small_folder / entry.name).stat().st_size / 1000:,.1f} kB",
            f"{pairs.mean():.1%}" if len(pairs) else "-",
        ]


def test_the_counts_and_options_of_the_manifest_are_on_the_page(data_set):
    manifest = replace(
        read_manifest(data_set),
        counts={"documents": 12_345, "rejected": 3},
        dropped={"short_document": 7, "cut_tokens": 98_765},
    )
    write_manifest(data_set, manifest)
    text = page_text(data_set)
    page = Parsed(text)
    for value in (manifest.dataset_digest, manifest.tokenizer_digest, "12,345"):
        assert page.text[value]
    assert page.row("cut_tokens") == ["98,765"]
    assert text.index(">cut_tokens<") < text.index(">short_document<")  # the most first
    assert page.row("max_seq_length") == ["16"]
    assert page.row("num_shards") == ["3"]
    assert page.row("max_predictions_per_seq") == ["3"]


def test_the_most_common_tokens_come_first_and_the_vocabulary_is_counted(small_folder, html):
    text, counts = html, Counter()
    for ids, positions, labels, *_ in rows_of(small_folder, "train"):
        for position, label in zip(positions, labels, strict=True):
            ids[position] = label
        counts.update(TOKENIZER.tokens[token] for token in ids)
    for special in SPECIAL_TOKENS:
        del counts[special]
    used, pieces = len(counts), TOKENIZER.vocab_size - len(SPECIAL_TOKENS)
    rate = f"{used} of the {pieces} tokens of the vocabulary occur ({used / pieces:.1%})"
    assert f"{rate} among {counts.total()} training tokens" in text
    best = max(counts, key=lambda token: counts[token])
    bars = Parsed(text).text
    assert bars[best]
    assert bars[f"{counts[best] / counts.total():.2%}"]


def test_the_first_rows_are_shown(small_folder, html):
    page = Parsed(html)
    assert page.tags["article"] == 10
    name = read_manifest(small_folder).shards[0].name
    assert [page.text[f"{name}, row {row}"] for row in range(11)] == [1] * 10 + [0]


def test_rejected_documents_are_listed_with_their_reasons(data_set):
    where = "a.xml,\u2028page"  # no end of a line in JSON
    lines = [{"where": f"{where} {i}", "reason": "deep" if i % 3 else "big"} for i in range(25)]
    written = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    (data_set / "rejected.jsonl").write_text(written + "\n")
    page = Parsed(page_text(data_set))
    assert page.row("deep") == ["16"]
    assert page.row("big") == ["9"]
    shown = [row for row in page.rows if row[0].startswith("a.xml")]
    assert shown == [[printable(line["where"]), line["reason"]] for line in lines[:10]]
    assert any("25 rejected; the first 10 are listed" in text for text in page.text)


def test_the_times_are_those_of_the_job_or_not_recorded(data_set):
    assert "CPU time of the stages: not recorded." in page_text(data_set)
    job = {"cpu_seconds": 4_321.5, "stages": {"read": 1.5, "tokens": 1_234.5, "pairs": 0}}
    (data_set / "job.json").write_text(json.dumps(job))
    page = Parsed(page_text(data_set))
    assert page.text["CPU time of the stages: 1,236.0 s, summed over all workers."]
    assert page.row("CPU time") == ["4,321.5 s"]
    assert page.text["1,234.5 s (100%)"]


# --- the page -------------------------------------------------------------------------------------


def write_hostile(folder):
    normalization = Normalization(lowercase=True, strip_accents=True)
    tokenizer = Tokenizer([*SPECIAL_TOKENS, *HOSTILE], normalization)
    write_data_set(folder, train=(40, 0, 30), tokenizer=tokenizer)
    rejected = {"where": "<b>a</b>.xml, \x1b[31m", "reason": "<i>"}
    (folder / "rejected.jsonl").write_text(json.dumps(rejected) + "\n")
    return folder


def test_hostile_tokens_are_text_and_nothing_else(tmp_path):
    html = page_text(write_hostile(tmp_path))
    page = Parsed(html)
    assert not page.tags.keys() & {"script", "img", "b", "i"}
    assert page.tags["article"] == 10
    for token in map(printable, HOSTILE):  # each is the label of a bar
        assert page.text[token if len(token) <= 24 else token[:23] + "…"], token
    assert not set(html) & {"\x00", "\x1b", "\u202e"}
    assert page.row("<b>a</b>.xml, \\x1b[31m") == ["<i>"]


def test_the_page_loads_nothing_and_its_ids_are_unique(html):
    page = Parsed(html)
    assert page.tags["svg"] >= 6
    ids = Counter(value for name, value in page.attributes if name == "id")
    assert set(ids.values()) == {1}
    named = {value for name, value in page.attributes if name in LOADING}
    assert named <= {"data:,", *(f"#{name}" for name in ids)}
    for _, value in page.attributes:
        assert set(re.findall(r"url\(#(\w+)\)", value or "")) <= ids.keys()
    assert not page.tags.keys() & {"script", "img", "iframe", "object", "metadata"}
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert ("content", policy) in page.attributes


def test_every_colour_of_a_chart_is_a_variable_of_the_page(html):
    used = set()
    for name, value in Parsed(html).attributes:
        if name in ("style", "fill", "stroke"):
            used |= set(re.findall(r"(?:fill|stroke): *([^;]+)", f"{name}: {value}; {value}"))
    assert {"var(--ink)", "var(--series-1)", "var(--series-2)"} <= used
    for colour in used - {"none"}:
        name = re.fullmatch(r"var\((--[\w-]+)\)", colour)
        assert name, colour
        assert len(re.findall(f"{name[1]}: #", html)) == 2  # in light and in dark


@pytest.mark.parametrize(
    ("train", "validation", "pairs", "charts"),
    [
        ((20, 0, 9), (5,), "segments", 8),
        ((20,), (0,), "segments", 7),  # no histogram of validation
        ((20,), (), "segments", 7),
        ((20,), (5,), "order", 8),
        ((20,), (5,), "none", 6),  # no B, and no balance
        ((1,), (), "none", 5),
    ],
)
def test_what_does_not_exist_has_no_chart(train, validation, pairs, charts, tmp_path):
    make = {"make": one_span} if pairs == "none" else {}
    config = replace(SMALL, pairs=pairs)
    write_data_set(tmp_path, train=train, validation=validation, config=config, **make)
    html = page_text(tmp_path)
    assert Parsed(html).tags["svg"] == charts
    assert ("There are no pairs" in html) == (pairs == "none")
    assert "nan" not in html


def one_span(rows, *, split, shard, config, of):
    """[CLS] A [SEP]"""
    words = np.random.default_rng(shard).choice(of.replacement_ids, (rows, 9)).tolist()
    return make_examples([[of.cls_id, *row, of.sep_id] for row in words])


def test_the_shards_of_a_chart_are_counted_in_whole_numbers():
    svg = draw_points("one", {"train": ([0], [0.5])}, band=(0.48, 0.52), x_label="x", y_label="y")
    labels = re.findall("<text[^>]*>([^<]*)</text>", svg)
    assert [label for label in labels if "." in label and "%" not in label] == []


def test_a_long_table_is_collapsed_and_an_empty_section_is_a_sentence(tmp_path):
    table = Table(heads=("name", "count"), rows=[(f"n{i}", f"{i}") for i in range(40)])
    sections = [
        Section(heading="Long", sentence="One.", tables=[table]),
        Section(heading="Nothing", sentence="Two."),
    ]
    tab = Tab(
        name="<t>",
        path="/t",
        template="clozeline.pipeline.view/sections.html.jinja",
        values=lambda _: {"figures": [("a", "1")], "sections": sections},
    )
    Site(title="x", tabs=[tab]).export(tmp_path / "page.html")
    page = Parsed((tmp_path / "page.html").read_text())
    assert page.tags["details"] == 1
    assert page.text["name: 40 rows"] == 1
    assert page.text["<t>"] == 1
    assert (page.tags["figure"], page.tags["table"], page.tags["section"]) == (0, 1, 3)


def test_another_process_with_other_settings_writes_the_same_bytes(tmp_path):
    folder = write_hostile(tmp_path / "data")
    invoke("report", folder)
    first = {name: (folder / name).read_bytes() for name in (REPORT, "README.md")}
    (tmp_path / "matplotlibrc").write_text("xtick.labelsize: 30\naxes.linewidth: 9\n")
    settings = {
        "MATPLOTLIBRC": str(tmp_path / "matplotlibrc"),
        "PYTHONHASHSEED": "7",
        "TZ": "Asia/Tokyo",
    }
    again = shutil.copytree(folder, tmp_path / "elsewhere" / "data")
    (again / REPORT).unlink()
    command = [sys.executable, "-W", "error", "-m", "clozeline", "report", str(again)]
    subprocess.run(command, cwd=ROOT, env=os.environ | settings, check=True, capture_output=True)
    assert {name: (again / name).read_bytes() for name in first} == first


# --- the command ----------------------------------------------------------------------------------


def test_page_and_card_are_written_into_the_folder_and_with_out_the_page_alone(data_set, tmp_path):
    before, page = sorted(data_set.iterdir()), tmp_path / "page.html"
    assert invoke("report", data_set, "--out", page).stdout == f"{page}\n"
    assert sorted(data_set.iterdir()) == before
    written = f"{data_set / REPORT} and {data_set / 'README.md'}\n"
    assert invoke("report", data_set).stdout == written
    assert (data_set / REPORT).read_text() == page.read_text()
    assert not list(data_set.glob(".*"))


def test_a_data_set_in_a_store_has_the_same_report(data_set, tmp_path):
    store = path_of("memory://report/data")
    for path in (path for path in data_set.rglob("*") if path.is_file()):
        place = store / path.relative_to(data_set).as_posix()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    result = invoke("report", "memory://report/data")
    assert result.exit_code == 0, result.output
    invoke("report", data_set)
    for name in (REPORT, "README.md"):
        assert (store / name).read_bytes() == (data_set / name).read_bytes()


def test_what_a_user_can_fix_is_one_line(data_set, tmp_path, monkeypatch):
    assert "is a folder; give --out the name of a file" in refused(
        "report", data_set, "--out", tmp_path
    )
    lost = tmp_path / "lost" / "page.html"
    assert f"{lost.parent} is not a folder; give --out a file" in refused(
        "report", data_set, "--out", lost
    )
    (data_set / "job.json").write_text("{")
    assert "job.json cannot be read" in refused("report", data_set)
    (data_set / "job.json").unlink()
    (data_set / "train-00001-of-00005.arrow").unlink()
    assert "train-00001-of-00005.arrow is missing" in refused("report", data_set)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    assert "needs matplotlib, which is not installed; run `pip ins" in refused("report", data_set)
    assert not (data_set / REPORT).exists()


def test_rows_that_cannot_be_counted_are_named(data_set):
    """The manifest and the tokenizer of another data set, where ids end sooner."""
    other = data_set.parent / "other"
    few = Tokenizer(TOKENIZER.tokens[:12], TOKENIZER.normalization)
    write_data_set(other, train=(13, 20, 0, 7, 17), validation=(9, 14), tokenizer=few)
    name = "train-00001-of-00005.arrow"
    shutil.copy(data_set / name, other / name)
    assert f"{other / name} is damaged (its bytes are not those that were written)" in refused(
        "report", other
    )


def test_a_line_whose_name_begins_with_an_underscore_is_in_the_legend():
    lines = {"_other": (np.arange(3), np.arange(3)), "one": (np.arange(3), np.arange(3))}
    svg = draw_lines("lines", lines, x_label="x", y_label="y")
    assert "_other</text>" in svg
