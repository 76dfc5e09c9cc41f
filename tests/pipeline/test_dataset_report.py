"""The report: its numbers are those of the rows, and its page needs and runs nothing else."""

import json
import re
import shutil
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.dataset.manifest import REPORT, read_manifest, write_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.report.charts import Line, draw_lines
from clozeline.pipeline.report.dataset_chapter import count_rows, count_split
from clozeline.pipeline.report.page import Chapter, Section, Table, html_page, printable
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS, Normalization
from tests.pipeline.test_inspect import example
from tests.support.command import invoke, refused
from tests.support.small import lists, make_examples, small_tokenizer
from tests.support.small_data import SMALL, random_examples, write_data_set
from tests.support.small_jobs import python

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


def rows_of(folder, split=None):
    """Every row in plain Python: ids, positions, labels, kind."""
    columns = ("input_ids", "masked_lm_positions", "masked_lm_labels")
    found = []
    for entry in read_manifest(folder).shards:
        if split in (None, entry.split):
            examples = read_shard(folder / entry.name)
            ragged = (lists(getattr(examples, name)) for name in columns)
            found += zip(*ragged, examples.next_sentence_label.tolist(), strict=True)
    return found


def report_of(folder):
    """The page that is written into the folder."""
    done = invoke("report", folder)
    assert done.exit_code == 0, (done.output, done.exception)
    return (folder / REPORT).read_text()


@pytest.fixture(scope="module")
def html(small_folder, tmp_path_factory):
    """The page of 57 + 23 rows, one shard without any."""
    page = tmp_path_factory.mktemp("html") / "page.html"
    assert invoke("report", small_folder, "--out", page).stdout == f"{page}\n"
    assert not (small_folder / REPORT).exists()
    return page.read_text()


@pytest.fixture(scope="module")
def page(html):
    return Parsed(html)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Tokens and names that are markup; swapped pairs; training rows alone."""
    folder = tmp_path_factory.mktemp("hostile") / "data"
    normalization = Normalization(lowercase=True, strip_accents=True)
    tokenizer = Tokenizer([*SPECIAL_TOKENS, *HOSTILE], normalization)
    config = replace(SMALL, pairs="order")
    write_data_set(folder, train=(40, 0, 30), validation=(0,), config=config, tokenizer=tokenizer)
    rejected = {"where": "<b>a</b>.xml, \x1b[31m", "reason": "<i>"}
    (folder / "rejected.jsonl").write_text(json.dumps(rejected) + "\n")
    report_of(folder)
    return folder


@pytest.fixture
def data_set(small_folder, tmp_path):
    """A copy to write into."""
    return shutil.copytree(small_folder, tmp_path / "data")


def test_a_pair_is_counted_token_by_token():
    shown = example(
        "[CLS] the [MASK] sat on the [UNK] . [SEP] it dog ran [SEP]",
        hidden={2: "cat", 10: "slept", 11: "ran"},
        length_a=9,
        label=1,
    )
    assert +count_rows(shown, TOKENIZER) == {
        **{"rows": 1, "negative": 1, "tokens": 13, "unknown": 1, "maskable": 9},
        **{"masked": 1, "random": 1, "kept": 1},
    }


def test_the_numbers_of_the_page_are_those_of_the_rows(small_folder, page):
    assert page.text[small_folder.name] == 2  # title and heading
    found = {row[0]: row[1:] for row in page.rows}
    assert found["statistic"] == ["train", "validation"]
    for column, split in enumerate(found["statistic"]):
        rows = rows_of(small_folder, split)
        tokens = sum(len(ids) for ids, *_ in rows)
        _, counted = count_split(small_folder, read_manifest(small_folder), TOKENIZER, split)
        lengths = Counter(len(ids) for ids, *_ in rows)
        assert {int(n): int(counted[n]) for n in np.flatnonzero(counted)} == lengths
        masked = Counter()
        for ids, positions, labels, _ in rows:
            for position, label in zip(positions, labels, strict=True):
                is_mask, is_label = ids[position] == TOKENIZER.mask_id, ids[position] == label
                masked["[MASK]" if is_mask else "themselves" if is_label else "a random token"] += 1
        shown = {
            f"masked, shown as {name} ({share}% expected)": f"{masked[name] / masked.total():.2%}"
            for name, share in {"[MASK]": 80, "a random token": 10, "themselves": 10}.items()
        }
        kinds = Counter(kind for *_, kind in rows)
        expected = {
            "examples": f"{len(rows):,}",
            "tokens": f"{tokens:,}",
            f"real tokens in batches padded to {SMALL.max_seq_length}": (
                f"{tokens / (len(rows) * SMALL.max_seq_length):.2%}"
            ),
            "masked tokens": f"{masked.total():,}",
            **shown,
            "B follows A": f"{kinds[0]:,}",
            "B is random": f"{kinds[1]:,}",
            "random pairs": f"{kinds[1] / (kinds[0] + kinds[1]):.2%}",
            "no B": f"{kinds[-1]:,}",
        }
        assert {name: found[name][column] for name in expected} == expected


def test_the_examples_are_those_of_inspect(small_folder, page):
    assert page.tags["article"] == 10
    shown = invoke("inspect", small_folder, "-n", 10).stdout
    titles = re.findall(r"^(train-.*, row \d+: .*)$", shown, re.M)
    assert len(titles) == 10
    assert {page.text[title] for title in titles} <= {titles.count(title) for title in titles}
    classes = {word for name, value in page.attributes if name == "class" for word in value.split()}
    assert {"token", "masked", "random", "kept", "special"} <= classes


def test_counts_and_rejections_are_on_the_page(data_set):
    where = "a.xml,\u2028page"  # no end of a line in JSON
    lines = [{"where": f"{where} {i}", "reason": "deep" if i % 3 else "big"} for i in range(25)]
    written = "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    (data_set / "rejected.jsonl").write_text(written + "\n")
    manifest = replace(
        read_manifest(data_set),
        counts={"documents": 12_345, "rejected": 3},
        dropped={"short_document": 7, "cut_tokens": 98_765},
    )
    write_manifest(data_set, manifest)
    assert invoke("report", data_set).stdout == f"{data_set / REPORT}\n"
    text = (data_set / REPORT).read_text()
    page = Parsed(text)
    for value in (manifest.dataset_digest, manifest.tokenizer_digest, "12,345", "12,352"):
        assert page.text[value]
    assert page.row("tokens: cut off pairs that are longer than --max-seq-length") == ["98,765"]
    assert text.index(">tokens: cut off") < text.index(">documents: every par")  # the most first
    shown = [row for row in page.rows if row[0].startswith("a.xml")]
    assert shown == [[printable(line["where"]), line["reason"]] for line in lines[:10]]
    said = "Documents read: 12,352; rejected: 25; the first 10 are listed."
    assert any(text.startswith(said) for text in page.text)


def test_hostile_tokens_are_text_and_nothing_else(hostile):
    html = (hostile / REPORT).read_text()
    page = Parsed(html)
    assert not page.tags.keys() & {"script", "img", "b", "i"}
    assert page.tags["article"] == 10
    for token in map(printable, HOSTILE):  # each is in an example
        assert any(token in text for text in page.text), token
    assert not set(html) & {"\x00", "\x1b", "\u202e"}
    assert page.row("<b>a</b>.xml, \\x1b[31m") == ["<i>"]


def test_the_page_loads_nothing_and_its_ids_are_unique(page):
    ids = Counter(value for name, value in page.attributes if name == "id")
    assert set(ids.values()) == {1}
    named = {value for name, value in page.attributes if name in LOADING}
    assert named <= {"data:,", *(f"#{name}" for name in ids)}
    for _, value in page.attributes:
        assert set(re.findall(r"url\(#(\w+)\)", value or "")) <= ids.keys()
    assert not page.tags.keys() & {"script", "img", "iframe", "object", "metadata"}
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert ("content", policy) in page.attributes


def test_every_colour_of_a_chart_is_a_variable_of_the_page(html, page):
    used = set()
    for name, value in page.attributes:
        if name in ("style", "fill", "stroke"):
            used |= set(re.findall(r"(?:fill|stroke): *([^;]+)", f"{name}: {value}; {value}"))
    assert {"var(--ink)", "var(--series-1)", "var(--series-2)"} <= used
    for colour in used - {"none"}:
        name = re.fullmatch(r"var\((--[\w-]+)\)", colour)
        assert name, colour
        assert len(re.findall(f"{name[1]}: #", html)) == 2  # in light and in dark


def test_what_does_not_exist_has_no_chart(html, hostile, tmp_path):
    none = replace(SMALL, pairs="none")
    for name, rows in (("both", {"train": (20,), "validation": (5,)}), ("one", {"train": (1,)})):
        write_data_set(tmp_path / name, config=none, make=one_span, **rows)
    hostile_html = (hostile / REPORT).read_text()
    assert "swapped pairs" in hostile_html
    for text, has_pairs in (
        (html, True),
        (hostile_html, True),
        (report_of(tmp_path / "both"), False),
        (report_of(tmp_path / "one"), False),
    ):
        assert Parsed(text).tags["svg"] == 1  # lengths
        assert ("B follows A" in text) == has_pairs
        assert "nan" not in text
    write_data_set(tmp_path / "none", train=(0,))
    assert Parsed(report_of(tmp_path / "none")).tags.keys().isdisjoint({"svg", "article"})


def test_a_split_without_pairs_has_no_numbers_of_them(tmp_path):
    make = {"train": random_examples, "validation": one_span}
    rows = {"train": (20,), "validation": (5,)}
    write_data_set(tmp_path, make=lambda rows, **of: make[of["split"]](rows, **of), **rows)
    page = Parsed(report_of(tmp_path))
    assert [page.row(name)[1] for name in ("examples", "B follows A", "no B")] == ["5", "-", "-"]


def one_span(rows, *, split, shard, config, of):
    """[CLS] A [SEP]"""
    words = np.random.default_rng(shard).choice(of.replacement_ids, (rows, 9)).tolist()
    return make_examples([[of.cls_id, *row, of.sep_id] for row in words])


def test_a_long_table_is_collapsed_and_an_empty_section_is_a_sentence():
    table = Table(heads=("name", "count"), rows=[(f"n{i}", f"{i}") for i in range(40)])
    sections = [
        Section(heading="Long", sentence="One.", tables=[table]),
        Section(heading="Nothing", sentence="Two."),
    ]
    chapter = Chapter(name="A name", figures=[("<t>", "1")], sections=sections)
    page = Parsed(html_page("x", [chapter]))
    assert page.tags["details"] == 1
    assert page.text["name: 40 rows"] == 1
    assert page.text["<t>"] == 1
    assert ("id", "a-name") in page.attributes
    assert (page.tags["figure"], page.tags["table"], page.tags["section"]) == (0, 1, 3)


def test_another_process_with_other_settings_writes_the_same_page(hostile, tmp_path):
    (tmp_path / "matplotlibrc").write_text("xtick.labelsize: 30\naxes.linewidth: 9\n")
    settings = {"MATPLOTLIBRC": str(tmp_path / "matplotlibrc"), "PYTHONHASHSEED": "7"}
    again = shutil.copytree(hostile, tmp_path / "elsewhere" / "data")
    (again / REPORT).unlink()
    before = {*again.iterdir()}
    said = python("-W", "error", "-m", "clozeline", "report", again, TZ="Asia/Tokyo", **settings)
    assert said == f"{again / REPORT}\n"
    assert {*again.iterdir()} == {*before, again / REPORT}
    assert (again / REPORT).read_bytes() == (hostile / REPORT).read_bytes()


def test_a_data_set_in_a_store_has_the_same_report(hostile):
    store = path_of("memory://report/data")
    for path in (path for path in hostile.rglob("*") if path.is_file()):
        if path.name != REPORT:
            place = store / path.relative_to(hostile).as_posix()
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    result = invoke("report", "memory://report/data")
    assert result.exit_code == 0, result.output
    assert (store / REPORT).read_bytes() == (hostile / REPORT).read_bytes()


def test_what_a_user_can_fix_is_one_line(data_set, tmp_path, monkeypatch):
    for place in (tmp_path, tmp_path / "lost" / "page.html"):
        said = f"{place} cannot be a page; give a file in an existing folder."
        assert refused("report", data_set, "--out", place) == said
    shard = data_set / "train-00001-of-00005.arrow"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    damaged = f"{shard} is damaged (its bytes are not those that were written)"
    assert damaged in refused("report", data_set)
    shown = invoke("inspect", data_set, "-n", 57)  # those of other shards, perhaps
    assert (shown.exit_code, damaged in shown.stderr) == (2, True)
    shard.unlink()
    assert "train-00001-of-00005.arrow is missing" in refused("report", data_set)
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    assert "needs matplotlib, which is not installed; run `pip ins" in refused("report", data_set)
    assert not (data_set / REPORT).exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rejected.jsonl", '{"where": "x", "rea'),
        ("rejected.jsonl", "null"),
        ("rejected.jsonl", '{"where": "x", "reason": 5}'),
        ("rejected.jsonl", '{"where": "x", "reason": "\xff"}'),
        ("dropped.jsonl", '{"reason": "near_duplicate"}'),
        ("dropped.jsonl", '{"reason": "a", "document": "b", "text": "c", "value": "d"}'),
    ],
)
def test_what_a_job_left_there_is_refused_in_one_line_where_it_is_damaged(name, content, data_set):
    (data_set / name).write_bytes(content.encode("latin-1"))
    said = refused("report", data_set)
    assert said.startswith(f"{data_set / name} cannot be read (")
    assert said.endswith("); delete it.")
    (data_set / name).unlink()
    report_of(data_set)


def test_samples_that_another_version_wrote_are_shown(data_set):
    sample = {"reason": "near_duplicate", "document": "b", "text": "A copy.", "value": 0.9}
    (data_set / "dropped.jsonl").write_text(json.dumps({**sample, "kept": "a", "kept_text": "A."}))
    assert "A copy." in report_of(data_set)


def test_a_line_whose_name_begins_with_an_underscore_is_in_the_legend():
    lines = [Line(x=[0, 1], y=[0, 1], label=label) for label in ("_other", "one")]
    svg, _ = draw_lines("lines", lines, caption="c", x_label="x")
    assert "_other</text>" in svg


def test_labels_of_a_chart_are_round_and_few():
    for x, log_x, labels in (
        ((1, 1_500_000), False, ["0", "500,000", "1,000,000", "1,500,000"]),
        ((100, 59_242), True, ["100", "1,000", "10,000"]),
    ):
        svg, _ = draw_lines("ticks", [Line(x=x, y=x)], caption="c", x_label="x", log_x=log_x)
        assert re.findall(">([^<]*)</text>", svg)[: len(labels)] == labels
