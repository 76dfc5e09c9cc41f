"""Options that every source has: its text columns, its first documents, its weight."""

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import combinations, permutations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.formats import list_blocks, read_table
from clozeline.pipeline.sources.source_query import SourceOptions, portable_names, split_options
from clozeline.pipeline.steps.context import sources_digest
from clozeline.pipeline.verify.verify import verify
from tests.pipeline.test_steps import CONFIG, TEXT, build, cache_files, work
from tests.support.small_sources import page, read, write

SPANS = replace(CONFIG, pairs="none")
PARAGRAPHS = TEXT.split("\n\n")


def json_lines(path, *rows):
    return write(path, "\n".join(map(json.dumps, rows)))


@pytest.mark.parametrize(
    ("source", "name", "options"),
    [
        ("a.jsonl", "a.jsonl", {}),
        ("a.jsonl?text=review", "a.jsonl", {"text_columns": ("review",), "query": "text=review"}),
        ("b?.txt?repeat=2", "b?.txt", {"repeat": 2, "query": "repeat=2"}),
        ("b?.txt", "b?.txt", {}),
        ("?text.txt", "?text.txt", {}),
        ("https://h/a.txt?limit=no", "https://h/a.txt?limit=no", None),
        ("https://h/a.txt?download=1&limit=5", "https://h/a.txt?download=1&limit=5", {}),
        ("https://h/a.txt?v=1?limit=5", "https://h/a.txt?v=1", {"limit": 5, "query": "limit=5"}),
        ("s3://b/*.parquet?limit=9&text=title,long%20text&repeat=3", "s3://b/*.parquet",
         {"text_columns": ("title", "long text"), "repeat": 3, "limit": 9,
          "query": "text=title,long text&repeat=3&limit=9"}),
    ],
)  # fmt: skip
def test_only_what_begins_with_a_known_option_is_a_query(source, name, options):
    if options is None:
        with pytest.raises(InputError, match="limit is a whole number"):
            split_options(source, is_url=False)
    else:
        assert split_options(source, is_url=False) == (name, SourceOptions(**options))


def test_a_source_with_a_scheme_mixes_its_own_options_with_those_of_every_source():
    name, options = split_options("hf://D?name=n&text=a,b&split=s&limit=7", is_url=True)
    assert name == "hf://D?name=n&split=s&limit=7"  # its rows are streamed
    assert (options.text_columns, options.limit) == (("a", "b"), None)
    assert split_options("hf://D?text=a", is_url=True)[0] == "hf://D"
    assert split_options("hf://D?name=n", is_url=True) == ("hf://D?name=n", SourceOptions())


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("?text=a&size=3", "no option 'size'; the options are text, repeat, limit, tokens"),
        ("?text=", "text names columns, as in text=title,content"),
        ("?text=a&text=b", "text is given 2 times; give it once (several columns are text=title"),
        ("?repeat=0", "repeat is from 1 to 1000, not 0"),
        ("?repeat=2.5", "repeat is a whole number, as in repeat=5000, not '2.5'"),
        ("?limit=0", "limit is 0; give at least 1"),
        ("?limit=1GB", "limit is a whole number"),
        ("?text=text", "a.txt has no columns; give it without text="),
        ("?document=page", "document is 'line' or left out, not 'page'"),
        ("?lines=hard", "lines is 'wrapped' or left out, not 'hard'"),
        ("?holes=keep", "holes is 'drop' or left out, not 'keep'"),
        ("?holes=drop", "is text; ?holes=drop is for mediawiki, so leave it out"),
        ("?tokens=5 apples", "give a number of tokens, such as 50M"),
        ("?tokens=0", "give a number of tokens"),
        ("?tokens=5M&repeat=2", "give one of repeat and tokens"),
        ("?mix=wiki", "matches no file; check the path, or the option: text, repeat, limit"),
        ("?limit=5&mix=a", "no option 'mix'; the options are text, repeat, limit, tokens"),
        ("sample:reviews?rows=999999999999999999", "is more than 1.0 TB of text; ask for less"),
        ("sample:articles?size=999999999999T", "is more than 1.0 TB of text; ask for less"),
        ("sample:essays", "unknown sample; give sample:articles or sample:reviews"),
        ("sample:articles?rows=3", "no option 'rows'; the options are size, seed"),
        ("sample:articles?size=huge", "size is 'huge'; give bytes, such as 250MB or 64KB."),
        ("sample:reviews?rows=-1", "rows is a whole number, as in rows=5000, not '-1'"),
        ("sample:reviews?turning=2", "turning is from 0 to 1, as in turning=0.25, not '2'"),
        ("sample:reviews?turn=1", "the options are rows, seed, start, turning, words"),
        ("sample:reviews?words=some", "words is all, even, odd, not 'some'"),
        ("sample:reviews?rows=0", "nothing to read in sample:reviews?rows=0"),
        ("sample:articles?size=0", "nothing to read in sample:articles?size=0; give a source"),
        ("hf://x?config=1", "no option 'config'; the options are name, split"),
        ("sample:articles?repeat=2&rows=3", "options are size, seed, repeat, limit, tokens"),
        ("sample:articles?text=title", "sample:articles has no columns"),
    ],
)
def test_wrong_options_are_one_clear_line(source, message, tmp_path):
    text = write(tmp_path / "a.txt", "Some text.")
    with pytest.raises(InputError, match=re.escape(message)):
        list_blocks([text + source if source.startswith("?") else source])


def test_sources_of_one_corpus_may_have_different_columns(tmp_path):
    table = str(tmp_path / "reviews.parquet")
    pq.write_table(pa.table({"title": ["Good"], "content": ["It is."]}), table)
    articles = json_lines(tmp_path / "wiki.jsonl", {"text": "Rome is old."})
    reviews = json_lines(tmp_path / "imdb.jsonl", {"review": "A fine film."})
    faq = json_lines(tmp_path / "faq.jsonl", {"question": "Why?", "answer": "So."})
    sources = [f"{table}?text=title,content", articles, f"{reviews}?text=review"]
    sources += [f"{faq}?text=question", f"{faq}?text=answer"]
    texts = ["Good\nIt is.", "Rome is old.", "A fine film.", "Why?", "So."]
    assert read(*sources).texts == texts
    with pytest.raises(InputError, match="has no column 'body'; its columns are title, content"):
        list_blocks([f"{table}?text=body"])
    blocks = list_blocks([articles, f"{reviews}?text=review"], text_columns=("body",))
    assert [block.text_columns for block in blocks] == [("body",), ("review",)]


def test_every_column_can_be_named(tmp_path):
    """A plus is itself, and what separates options is written as in a URL."""
    row = {"a+b": "Plus.", "a b": "Space.", "a&b": "And.", "50%": "Half.", "label": "1"}
    source = json_lines(tmp_path / "a.jsonl", row)
    queries = ["a+b", "a%2Bb", "a b", "a%20b", "a%26b", "50%25"]
    for query, column in zip(queries, ["a+b"] * 2 + ["a b"] * 2 + ["a&b", "50%"], strict=True):
        assert read(f"{source}?text={query}").texts == [row[column]]


def test_in_a_manifest_local_sources_have_only_the_folders_that_keep_them_apart():
    names = {
        "/data/sst2/a.csv?limit=9": "a.csv?limit=9",
        "file:///data/c.csv?text=a/b": "file:///c.csv?text=a/b",
        "hf:///data/imdb/?name=a/b": "hf:///imdb/?name=a/b",
        "hf://stanfordnlp/imdb?split=test": "hf://stanfordnlp/imdb?split=test",
        "s3://bucket/a.csv": "s3://bucket/a.csv",
    }
    assert portable_names([*names]) == [*names.values()]
    for scheme in ("", "file://", "hf://"):
        two = [f"{scheme}/data/{name}/b.csv" for name in ("sst2", "imdb")]
        root = scheme and f"{scheme}/"
        assert portable_names(two) == [f"{root}sst2/b.csv", f"{root}imdb/b.csv"]


LINES = st.sampled_from(['{"text": "One."}', '{"text": "Tw\\udc80."}', '{"text": " "}', "{", ""])


@settings(max_examples=30)
@given(st.lists(LINES, min_size=1, max_size=30), st.lists(LINES, max_size=5), st.integers(1, 40))
def test_a_limit_keeps_the_first_documents_and_counts_only_what_is_before(
    tmp_path, first, second, limit
):
    for name, lines in (("a", [*first, '{"text": "Last."}']), ("b", second)):
        write(tmp_path / f"{name}.jsonl", "\n".join(lines))
    whole = read(f"{tmp_path}/*.jsonl")
    found = read(f"{tmp_path}/*.jsonl?limit={limit}")
    assert found.texts == whole.texts[:limit]
    before = [bad.where for bad in found.rejected]
    assert before == [bad.where for bad in whole.rejected][: len(before)]
    sums = set()
    for size in (1, 40, 1000):
        source = f"{tmp_path}/*.jsonl?limit={limit}"
        assert read(source, block_bytes=size, chunk_bytes=size) == found
        sums.add(sum(block.text_bytes for block in list_blocks([source], block_bytes=size)))
    if limit <= len(whole.texts):
        assert sums == {sum(len(text.encode()) for text in found.texts)}
        one_less = read(f"{tmp_path}/*.jsonl?limit={limit - 1}") if limit > 1 else Documents()
        assert set(one_less.counts.elements()) <= set(found.counts.elements())


def test_the_order_of_sources_that_share_files_changes_nothing(tmp_path):
    for name in "ab":
        json_lines(tmp_path / f"{name}.jsonl", *({"text": f"{name}{i}."} for i in range(4)))
    sources = ("*?limit=5", "a?limit=3", "b?limit=2", "*", "b")
    for some in combinations([f"{tmp_path}/{x[0]}.jsonl{x[1:]}" for x in sources], 3):
        found = {tuple(sorted(read(*one).texts)) for one in permutations(some)}
        assert len(found) == 1
        [texts] = found
        assert len(texts) == len(set(texts)) >= 5


def test_a_file_that_a_limit_left_out_can_be_named_again(tmp_path):
    for name in "ab":
        json_lines(tmp_path / f"{name}.jsonl", *({"text": f"{name} {i}."} for i in range(20)))
    found = read(f"{tmp_path}/*.jsonl?limit=10", f"{tmp_path}/b.jsonl?limit=10")
    assert found.texts == [f"{name} {i}." for name in "ab" for i in range(10)]
    sample = "sample:articles?size=1MB&limit=10"
    assert len(read(sample, sample).texts) == 10


def test_every_format_has_a_limit(tmp_path):
    texts = [f"Document {i} is here." for i in range(50)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=7)
    write(tmp_path / "b.txt", "\n\n".join(texts))
    pages = (page(str(i), text, ns=i % 2) for i, text in enumerate(texts))
    write(tmp_path / "c.xml", f"<mediawiki>{''.join(pages)}</mediawiki>")
    for name in ("a.parquet", "b.txt"):
        assert read(f"{tmp_path / name}?limit=23", block_bytes=100).texts == texts[:23]
    dump = read(f"{tmp_path / 'c.xml'}?limit=5")
    assert dump.texts == texts[:10:2]
    assert dump.counts == Counter(other_namespace=4)
    articles = read("sample:articles?size=100KB")
    assert read("sample:articles?size=100KB&limit=9").texts == articles.texts[:9]


def test_only_the_block_that_is_cut_short_has_an_identity_of_its_own(tmp_path):
    source = write(tmp_path / "a.txt", "Some words.\n\n" * 100)
    whole = list_blocks([source], block_bytes=200)
    some = list_blocks([f"{source}?limit=50"], block_bytes=200)
    assert 2 < len(some) < len(whole)
    assert [b.identity for b in some[:-1]] == [b.identity for b in whole[: len(some) - 1]]
    assert some[-1].identity not in {block.identity for block in whole}


def test_a_table_keeps_its_first_rows(tmp_path):
    source = json_lines(tmp_path / "a.jsonl", *({"n": i} for i in range(9)))
    assert read_table(f"{source}?limit=4", ["n"]).column("n").to_pylist() == [0, 1, 2, 3]
    assert len(read_table("sample:reviews?rows=9&limit=4", ["label"])) == 4
    for query in ("repeat=2", "label=n", "text_pair=n&limit=4"):
        with pytest.raises(InputError, match="a table is read with limit= only"):
            read_table(f"{source}?{query}", ["n"])


def test_other_options_make_other_sources(tmp_path):
    source = write(tmp_path / "a.txt", "Some words.\n\n" * 100)
    queries = ["", "?limit=50", "?limit=51", "?repeat=2", "?repeat=3"]
    digests = [sources_digest(list_blocks([source + query])) for query in queries]
    assert len(set(digests)) == len(queries)
    for query, digest in zip(queries, digests, strict=True):
        assert sources_digest(list_blocks([source + query], block_bytes=100)) == digest


def built(folder, *options, config=SPANS):
    """A data set of two halves of a text with these options, and how often it has each row."""
    _, context = work(folder, config)
    halves = PARAGRAPHS[:30], PARAGRAPHS[30:]
    sources = [
        write(folder / f"{number}.txt", "\n\n".join(half)) + option
        for number, (half, option) in enumerate(zip(halves, options, strict=True))
    ]
    manifest = build(list_blocks(sources, block_bytes=2000), context)
    assert verify(folder / "out", sources) == []
    return manifest, rows_of(folder / "out", manifest, "train")


def rows_of(folder, manifest, split):
    rows: Counter[bytes] = Counter()
    for entry in manifest.of_split(split):
        ids = read_shard(folder / entry.name).unmasked().input_ids
        rows.update(ids.slice(i, i + 1).values.tobytes() for i in range(len(ids)))
    return rows


def test_the_documents_of_a_repeated_source_make_as_many_times_as_many_examples(tmp_path):
    once, rows = built(tmp_path / "once", "", "")
    thrice, weighted = built(tmp_path / "thrice", "", "?repeat=3")
    added = weighted - rows
    assert rows <= weighted
    assert set(added.values()) == {2}
    assert 0.3 < len(added) / len(rows) < 0.7
    assert thrice.counts.pop("repeat") == 3
    assert thrice.counts == once.counts
    held_out = rows_of(tmp_path / "once" / "out", once, "validation")
    assert held_out == rows_of(tmp_path / "thrice" / "out", thrice, "validation") != Counter()


@pytest.mark.parametrize("pairs", ["segments", "sentences", "order"])
def test_repeated_documents_make_sound_pairs_with_every_kind(pairs, tmp_path):
    config = replace(CONFIG, pairs=pairs, dupe_factor=2)
    once, _ = built(tmp_path / "once", "", "", config=config)
    twice, _ = built(tmp_path / "twice", "?repeat=2", "?repeat=2", config=config)
    ratio = twice.num_examples("train") / once.num_examples("train")
    assert 1.8 < ratio < 2.2


def test_another_weight_tokenizes_nothing_again(tmp_path):
    blocks, context = work(tmp_path, SPANS)
    build(blocks, context)
    cached = cache_files(context)
    source = str(tmp_path / "corpus.txt")
    weighted = build(list_blocks([f"{source}?repeat=2"], block_bytes=2000), context)
    assert cache_files(context) == cached
    assert weighted.counts["repeat"] == 2
    assert verify(tmp_path / "out", [f"{source}?repeat=2"]) == []
    assert verify(tmp_path / "out", [source]) != []


def test_a_document_of_two_sources_counts_as_in_that_of_the_higher_weight(tmp_path):
    _, context = work(tmp_path, SPANS)
    source = str(tmp_path / "corpus.txt")
    twice = build(list_blocks([f"{source}?repeat=2"]), context)
    rows = rows_of(tmp_path / "out", twice, "train")
    both = build(list_blocks([source, f"{source}?repeat=2"]), context)
    assert rows_of(tmp_path / "out", both, "train") == rows
    assert both.dropped["duplicate_document"] == 60
