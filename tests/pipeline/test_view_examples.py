"""The Examples page: every row can be found, by shard, row, token, document and filter."""

import re
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import pytest

from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.view.examples import MOST_ROWS, PAGE, ExamplePages, Query
from clozeline.pipeline.view.row_search import has_sequence
from clozeline.pipeline.view.site import Site
from tests.support.http_clients import request, running
from tests.support.small import make_examples, small_tokenizer
from tests.support.small_data import SMALL, packed_examples, write_data_set
from tests.support.small_runs import tokenizer_of

pytest.importorskip("jinja2")

TOKENIZER = small_tokenizer()


def site_of(pages):
    return Site(title="shards", tabs=[pages.tab()])


@pytest.fixture(scope="module")
def server(small_folder):
    with running(site_of(ExamplePages(small_folder)).server()) as server:
        yield server


@pytest.fixture(scope="module")
def rows(small_folder):
    """(shard, row) -> one row, of the whole data set in order."""
    found = {}
    for entry in read_manifest(small_folder).shards:
        examples = read_shard(small_folder / entry.name)
        for row in range(len(examples)):
            found[entry.name, row] = examples.slice(row, row + 1)
    return found


def places(values):
    return [(row["shard"], row["row"]) for row in values["rows"]]


def as_json(link):
    return link.replace("/examples?", "/examples.json?")


def walk(server, path, link="after"):
    """The places of a page and of all pages that its links lead to."""
    found = []
    while path:
        values = request(server, as_json(path)).json
        found.append(places(values))
        path = values[link]
    return found


def test_paging_shows_every_row_once_and_in_order(server, rows):
    pages = walk(server, "/examples?")
    assert [len(page) for page in pages] == [PAGE] * 8
    assert [place for page in pages for place in page] == list(rows)


def test_paging_back_shows_the_same_pages(server):
    forward = walk(server, "/examples?")
    last = request(server, "/examples.json?shard=6&row=4").json
    assert places(last) == forward[-1]
    assert walk(server, "/examples?shard=6&row=4", "before")[::-1] == forward


def test_tokens_are_those_of_the_shard(server, rows):
    for row in request(server, "/examples.json").json["rows"]:
        example = rows[row["shard"], row["row"]]
        tokens = row["tokens"]
        shown = [TOKENIZER.tokens[i] for i in example.input_ids.values]
        assert [token["token"] for token in tokens] == shown
        masks = [i for i, token in enumerate(tokens) if token["mask"]]
        assert masks == example.masked_lm_positions.values.tolist()
        labels = [TOKENIZER.tokens[i] for i in example.masked_lm_labels.values]
        assert [tokens[i]["original"] for i in masks] == labels
        for i in masks:
            token = tokens[i]
            is_kept = token["token"] == token["original"]
            kind = {"[MASK]": "masked"}.get(token["token"], "kept" if is_kept else "random")
            assert token["mask"] == kind


def test_a_page_begins_with_the_row_of_its_address_and_marks_each_kind_of_mask(server):
    pages = [request(server, f"/examples?shard={shard}&row=4").text for shard in (0, 1, 3, 4)]
    titles = re.findall(r"<h3>(.*)</h3>", pages[1])
    assert titles == [f"train-00001-of-00005.arrow, row {4 + row}" for row in range(PAGE)]
    kinds = re.findall(r'<span class="token (?:continues )?(masked|random|kept)">', "".join(pages))
    assert {*kinds} == {"masked", "random", "kept"}
    assert '<p class="span span-b"><span class="name">B</span>' in pages[1]


def matching(rows, test):
    return [place for place, example in rows.items() if test(example)]


def found(server, query):
    return [place for page in walk(server, f"/examples?{query}") for place in page]


@pytest.mark.parametrize(
    ("text", "words"),
    [("cat", ["cat"]), ("##ing", ["##ing"]), ("[MASK]", ["[MASK]"]), ("WAS not", ["was", "not"])],
)
def test_a_search_finds_all_rows_with_its_tokens_as_shown_or_original(server, rows, text, words):
    ids = [TOKENIZER.tokens.index(word) for word in words]

    def has(example):
        columns = (example.input_ids, example.unmasked().input_ids)
        tokens = [column.values.tolist() for column in columns]
        return any(row[i : i + len(ids)] == ids for row in tokens for i in range(len(row)))

    expected = matching(rows, has)
    assert expected
    assert found(server, f"text={quote(text)}") == expected


def test_a_document_is_found_by_its_hash(server, rows):
    place, example = list(rows.items())[30]
    number = f"{int(example.document_a[0]):016x}"
    for text in (number, f"0x{number}"):
        assert found(server, f"text={text}") == [place]
    link = f'<a href="/examples?text={number}">{number}</a>'
    assert link in request(server, f"/examples?text={number}").text


def test_filters_leave_the_rows_that_they_name(server, rows):
    random = found(server, "only=random")
    assert random == matching(rows, lambda e: e.next_sentence_label[0] == 1)
    short = matching(rows, lambda e: len(e.input_ids.values) < SMALL.max_seq_length / 2)
    assert found(server, "only=short") == short
    both = [place for place in found(server, "text=dog") if place in random]
    assert found(server, "only=random&text=dog") == both != []


def test_unknown_tokens_are_found_before_masking(tmp_path):
    def make(rows, **_):
        word = TOKENIZER.tokens.index("cat")
        ids = [[TOKENIZER.cls_id, *[word] * 8, TOKENIZER.sep_id] for _ in range(rows)]
        ids[3][5] = TOKENIZER.unk_id
        return make_examples(ids)

    folder = write_data_set(tmp_path, train=(12,), make=make)
    found = ExamplePages(folder).data({"only": "unknown"})
    assert places(found) == [("train-00000-of-00001.arrow", 3)]


def test_no_match_is_a_sentence(server):
    long = "text=ffffffffffffffff"
    page = request(server, f"/examples?{long}").text
    assert "No row from here on matches." in page
    values = request(server, f"/examples.json?shard=0&row=0&back=1&{long}").json
    assert (values["rows"], values["note"]) == ([], "No row before this one matches.")


def test_a_search_stops_after_so_many_rows_and_continues_on_the_page_after_or_before(small_folder):
    pages, text = ExamplePages(small_folder), "f" * 16
    pages.shards[:] = [replace(shard, rows=MOST_ROWS) for shard in pages.shards]
    query, last = Query(text=text), len(pages.shards) - 1
    found = pages.data({"text": text})
    assert found["note"] == "Searched 1,000,000 rows; the next page continues."
    assert found["after"] == query.link((1, 0))
    for shard in range(last, 0, -1):
        found = pages.data({"text": text, "shard": shard, "row": 0, "back": 1})
        assert found["before"] == (query.link((shard - 1, 0), back=True) if shard > 1 else None)
        if shard > 1:
            assert found["note"] == "Searched 1,000,000 rows; the page before continues."
    assert found["note"] == "No row before this one matches."


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("row=x", "row is &#39;x&#39;; it must be a number from 0, of 18 digits at most."),
        ("row=-1", "row is &#39;-1&#39;"),
        ("row=%C2%B2", "it must be a number from 0,"),
        pytest.param(f"row={'9' * 5000}", "it must be a number from 0,", id="long"),
        ("shard=99", "there is no shard 99; the last is 6."),
        ("only=strange", "there is no filter &#39;strange&#39;."),
        ("text=zebra", "the vocabulary does not have &#39;zebra&#39;"),
        ("text=%3Cscript%3E", "the vocabulary does not have &#39;&lt;script&gt;&#39;"),
    ],
)
def test_a_wrong_address_is_explained_on_a_page(server, query, message):
    reply = request(server, f"/examples?{query}")
    assert reply.status == 400
    assert message in reply.text
    assert "<script" not in reply.text


def test_markup_in_tokens_paths_and_searches_stays_text(tmp_path):
    tokenizer = tokenizer_of("<script>", "</p>", "&amp;", '"><b>')
    folder = write_data_set(tmp_path / "<i>x", train=(20,), tokenizer=tokenizer)
    pages = ExamplePages(folder)
    with running(Site(title=str(folder), tabs=[pages.tab()]).server()) as server:
        html = request(server, "/examples?text=%3Cscript%3E").text
    assert html.count("&lt;script&gt;") > 5
    for bad in ("<script>", "<i>", "<b>", "&amp;\n"):
        assert bad not in html
    Site(title=str(folder), tabs=[pages.tab()]).export(tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text()
    assert "&lt;i&gt;x" in html
    assert not re.search("<script|<i>|<b>", html)


def test_packed_rows_are_shown_piece_by_piece_and_found_by_the_document_of_any(tmp_path):
    config = DataConfig(max_seq_length=32, num_shards=1, pairs="packed")
    folder = write_data_set(tmp_path, train=(30,), config=config, make=packed_examples)
    pages = ExamplePages(folder)
    examples = read_shard(folder / pages.shards[0].name)
    row = int(np.argmax(examples.piece_lengths.lengths))
    pieces = examples.piece_lengths.slice(row, row + 1).values
    assert len(pieces) > 2
    shown = pages.values({"row": row})["examples"][0]
    assert [name for name, _ in shown.spans] == [f"piece {i + 1}" for i in range(len(pieces))]
    assert [len(tokens) for _, tokens in shown.spans] == pieces.tolist()
    assert shown.notes[1] == f"{len(pieces)} pieces"
    assert len(shown.documents) == len(pieces)
    for document in shown.documents:
        assert places(pages.data({"text": document})) == [(pages.shards[0].name, row)]


def test_a_data_set_without_rows_has_a_page(tmp_path):
    folder = write_data_set(tmp_path, train=(0,))
    _, make = site_of(ExamplePages(folder)).routes()["GET /examples"]
    assert "The data set has no rows." in make({})


def test_rows_with_a_sequence_do_not_run_into_each_other():
    column = Ragged(np.array([1, 2, 3, 1, 2]), np.array([0, 1, 3, 3, 5]))
    assert has_sequence(column, (1, 2)).tolist() == [False, False, False, True]
    assert has_sequence(column, (3,)).tolist() == [False, True, False, False]
    assert not has_sequence(column, (1, 2, 3, 1, 2, 3)).any()
