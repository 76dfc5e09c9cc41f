"""Documents that the engine groups as text: the shards of a job, whatever order and runner."""

import json
import random
import shutil
import stat
import tempfile
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import get_args

import apache_beam as beam
import datasets
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.transforms.window import FixedWindows

import clozeline
from clozeline.beam import MakeExamples, ReadDocuments, WriteDataSet
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.config import DataConfig, PairScheme
from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from clozeline.pipeline.dataset.shards import read_batches
from clozeline.pipeline.job.job import build_shards
from clozeline.pipeline.sources.documents import spooled
from clozeline.pipeline.verify.verify import verify
from tests.pipeline.test_graph import counters_of
from tests.support.command import output_of, refused
from tests.support.files import contents, times
from tests.support.printed_commands import blocks
from tests.support.small_jobs import (
    ROOT,
    articles,
    shard_digests,
    write_parquet,
    write_texts,
    write_tokenizer,
)

PAGE = ROOT / "docs" / "manual" / "beam.md"
FN_API = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
SHAPE = {"num_shards": 3, "validation": 0.2, "max_seq_length": 64}
OPTIONS = [f"--{name.replace('_', '-')}={value}" for name, value in SHAPE.items()]
CONFIG = DataConfig(**SHAPE)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Two files with some texts in both, a tokenizer, and the data set of `clozeline shards`."""
    folder = tmp_path_factory.mktemp("texts")
    texts = articles(90)
    write_texts(folder / "a.jsonl", [*texts[:60], "short"])
    write_texts(folder / "b.jsonl", texts[50:])
    write_tokenizer(folder / "tokenizer", texts)
    line = ["shards", *sources(folder), "--tokenizer", folder / "tokenizer", *OPTIONS]
    output_of(*line, "--out", folder / "finished", "--workers=1")
    return folder


def sources(folder):
    """The second file twice, of which some texts are in the first."""
    return [str(folder / "a.jsonl"), f"{folder}/b.jsonl?repeat=2"]


@contextmanager
def pipeline(*options):
    """A pipeline that ends with the block."""
    with beam.Pipeline(runner=FN_API, options=PipelineOptions([*options])) as root:
        yield root


def line(corpus, out, *more, runner=("--job_name=mine",)):
    """The arguments of the same job without a token cache."""
    options = ("--tokenizer", corpus / "tokenizer", *OPTIONS, "--token-cache=none", *more)
    return ["shards", *sources(corpus), *options, "--out", out, "--", *runner]


@pytest.mark.parametrize("pairs", get_args(PairScheme))
def test_without_a_token_cache_every_file_has_the_same_bytes(corpus, tmp_path, pairs):
    """With every rule of curation that is allowed."""
    write_texts(tmp_path / "test.jsonl", [articles(9)[4]])
    rules = ("--quality=gopher", f"--exclude={tmp_path}/test.jsonl", f"--pairs={pairs}")
    output_of(*line(corpus, tmp_path / "out", *rules))
    with_cache = ["shards", *sources(corpus), "--tokenizer", corpus / "tokenizer", *OPTIONS, *rules]
    output_of(*with_cache, "--out", tmp_path / "cached", "--workers=1")
    assert read_manifest(tmp_path / "out").dropped["excluded"] > 0
    assert verify(tmp_path / "out") == []
    found, expected = contents(tmp_path / "out"), contents(tmp_path / "cached")
    job = json.loads(found.pop("job.json"))
    assert job["counters"] == counters_of(tmp_path / "cached")
    del found["job.log"], expected["job.log"], expected["job.json"]
    assert found == expected


def test_a_shard_that_is_there_is_not_made_again(corpus, tmp_path):
    """Its record stays until the manifest is written, which fails here."""
    out, limit = tmp_path / "out", "--max-rejected=0"
    (tmp_path / "bad.jsonl").write_text("{no json\n")
    words = line(corpus, out, limit)
    words.insert(1, str(tmp_path / "bad.jsonl"))
    assert "were rejected, more than the 0" in refused(*words, code=1)
    built = times(out, "*-of-*.arrow")
    assert len(built) == 4
    (out / "train-00001-of-00003.arrow").unlink()
    words[words.index(limit)] = "--max-rejected=0.5"
    output_of(*words)
    again = times(out, "*-of-*.arrow")
    assert [path for path in built if again[path] != built[path]] == [
        str(out / "train-00001-of-00003.arrow")
    ]
    assert shard_digests(out) == shard_digests(corpus / "finished")


def test_documents_of_the_same_sources_make_the_shards_of_the_command(corpus, tmp_path):
    with pipeline() as root:
        read = root | ReadDocuments(sources(corpus), block_bytes=20_000)
        read | WriteDataSet(tmp_path / "out", tokenizer=corpus / "tokenizer", config=CONFIG)
        examples = read | MakeExamples(tokenizer=corpus / "tokenizer", config=CONFIG)
        examples | beam.Map(keep, tmp_path)
    assert shard_digests(tmp_path / "out") == shard_digests(corpus / "finished")
    found, right = (read_manifest(folder) for folder in (tmp_path / "out", corpus / "finished"))
    assert found.counts == right.counts
    assert found.dropped == right.dropped
    assert found.sources_digest != right.sources_digest
    assert verify(tmp_path / "out", sources(corpus)) == []
    for name in shard_digests(corpus / "finished"):  # those for another sink are the same
        whole = pa.Table.from_batches(read_batches(corpus / "finished" / name))
        parts = sorted(tmp_path.glob(f"{name}.*"))
        batches = [pa.ipc.open_stream(part.read_bytes()).read_next_batch() for part in parts]
        assert pa.Table.from_batches(batches).equals(whole, check_metadata=True)
    assert not (tmp_path / MANIFEST).exists()


@pytest.mark.parametrize("form", [lambda text: text, lambda text: {"text": text, "id": 7}])
def test_order_and_form_of_the_documents_change_nothing(corpus, tmp_path, form):
    texts = [*articles(60), *articles(9)]
    manifests = []
    for number in range(2):
        out = tmp_path / f"{number}"
        random.Random(number).shuffle(texts)
        with pipeline() as root:
            documents = root | beam.Create([form(text) for text in texts])
            documents | WriteDataSet(
                out, tokenizer=corpus / "tokenizer", num_shards=3, config=DataConfig(validation=0.2)
            )
        manifests.append((out / MANIFEST).read_bytes())
    assert manifests[0] == manifests[1]
    assert read_manifest(tmp_path / "0").dropped["duplicate_document"] == 9
    assert shard_digests(tmp_path / "0") == shard_digests(tmp_path / "1")


def test_the_manifest_goes_on_and_a_data_set_is_replaced_only_on_request(corpus, tmp_path):
    out, shape = tmp_path / "out", {"tokenizer": corpus / "tokenizer", "num_shards": 2}
    for number, overwrite in ((40, False), (20, True)):
        with pipeline() as root:
            documents = root | beam.Create(articles(number))
            manifest = documents | WriteDataSet(out, **shape, overwrite=overwrite)
            rows = manifest | beam.Map(lambda found: found.counts["documents"])
            rows | beam.Map(lambda n: (tmp_path / "rows").write_text(str(n)))
        assert (tmp_path / "rows").read_text() == str(number)
        assert read_manifest(out).counts["documents"] == number
        assert verify(out) == []
        with pytest.raises(InputError, match=r"^WriteDataSet: .*/out holds a data set; give anoth"):
            WriteDataSet(out, **shape)


def keep(element, folder):
    """Write the batch into a file named by its shard."""
    name, batch = element
    number = len(list(folder.glob(f"{name}.*")))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    (folder / f"{name}.{number:04}").write_bytes(sink.getvalue())


def test_what_is_wrong_is_known_when_the_graph_is_built(corpus, tmp_path):
    good = {"tokenizer": corpus / "tokenizer", "num_shards": 2}
    for values, message in (
        ({**good, "num_shards": None}, r"^WriteDataSet: give num_shards=N; the size"),
        (
            {**good, "config": DataConfig(deduplicate="near")},
            "^WriteDataSet: deduplicate='near' need",
        ),
        ({**good, "tokenizer": tmp_path}, "^WriteDataSet: .*not a tokenizer folder"),
    ):
        with pytest.raises(InputError, match=message):
            WriteDataSet(tmp_path / "out", **values)
    with pytest.raises(InputError, match=r"nothing\.txt: no such file"):
        ReadDocuments(str(tmp_path / "nothing.txt"))
    with pytest.raises(InputError, match=r"^ReadDocuments: .*: tokens= needs `clozeline shards`"):
        ReadDocuments(f"{corpus}/a.jsonl?tokens=50")
    root = beam.Pipeline(runner=FN_API)
    endless = root | beam.Create(["a"]) | beam.WindowInto(FixedWindows(1))
    endless.is_bounded = False
    with pytest.raises(InputError, match=r"^WriteDataSet: the PCollection is unbounded; give a b"):
        endless | WriteDataSet(tmp_path / "out", **good)
    assert not (tmp_path / "out").exists()


def write_one(element, write):
    with pipeline() as root:
        root | beam.Create([element]) | write


@pytest.mark.parametrize(
    ("element", "message"),
    [(7, "an element is int; give texts, dicts with"), ({"txt": "a"}, "an element is dict; give")],
)
def test_an_element_that_is_no_text_is_named(corpus, tmp_path, element, message):
    write = WriteDataSet(tmp_path / "out", tokenizer=corpus / "tokenizer", num_shards=1)
    with pytest.raises(InputError, match=f"^WriteDataSet: {message}"):
        write_one(element, write)


def test_no_document_at_all_is_said_and_nothing_is_replaced(corpus, tmp_path):
    good = {"tokenizer": corpus / "tokenizer", "num_shards": 1}
    write_one("A text about rivers.\n\nIt has two lines.", WriteDataSet(tmp_path / "out", **good))
    before = contents(tmp_path / "out")
    for write in (
        WriteDataSet(tmp_path / "new", **good),
        WriteDataSet(tmp_path / "out", overwrite=True, **good),
    ):
        with (
            pytest.raises(InputError, match=r"^WriteDataSet: there is no document; give text"),
            pipeline() as root,
        ):
            root | beam.Create([]) | write
    assert contents(tmp_path / "out") == before
    assert not (tmp_path / "new").exists()


def test_a_tokenizer_that_workers_cannot_see_is_named(corpus, tmp_path):
    folder = shutil.copytree(corpus / "tokenizer", tmp_path / "tokenizer")
    write = WriteDataSet(tmp_path / "out", tokenizer=folder, num_shards=1)
    shutil.rmtree(folder)
    with pytest.raises(
        InputError, match=r"^WriteDataSet: .*not a tokenizer .* Workers must see it"
    ):
        write_one("A text.", write)


def test_documents_take_the_place_of_sources_and_the_same_call_is_complete(corpus, tmp_path):
    fixed = {"tokenizer": corpus / "tokenizer", "config": CONFIG, "workers": 1}
    texts, digests = articles(40), set()
    table = pa.table({"text": texts, "id": range(len(texts))})
    for name, documents in {
        "a generator": (text for text in texts),
        "dicts": [{"text": text, "id": 7} for text in texts],
        "pyarrow": table,
        "pandas": table.to_pandas(),
        "datasets": datasets.Dataset(table),
    }.items():
        out = tmp_path / name
        manifest, is_new = build_shards(documents=documents, out=out, **fixed)
        assert is_new
        assert manifest.counts["documents"] == 40
        digests.add(manifest.dataset_digest)
        assert build_shards(documents=texts, out=out, **fixed) == (manifest, False)
        with pytest.raises(InputError, match="holds another finished data set"):
            build_shards(documents=texts[1:], out=out, **fixed)
    assert len(digests) == 1
    assert not list(Path(tempfile.gettempdir()).glob("clozeline-*.jsonl"))


def test_given_documents_are_on_the_disk_for_their_owner_alone():
    with spooled(["A text."], ["text"], "out") as path:
        assert stat.S_IMODE(Path(path).stat().st_mode) == 0o600


def test_keep_chooses_documents_and_keywords_are_options(corpus, tmp_path):
    texts, options = articles(40), {"tokenizer": corpus / "tokenizer", "workers": 1}
    rows = [{"text": text, "good": number % 2} for number, text in enumerate(texts)]
    for name, documents in {"dicts": rows, "table": pa.Table.from_pylist(rows)}.items():
        chosen, _ = build_shards(
            documents=documents, keep=itemgetter("good"), out=tmp_path / name,
            max_seq_length=64, num_shards=2, **options,
        )  # fmt: skip
        config = DataConfig(max_seq_length=64, num_shards=2)
        good, _ = build_shards(
            documents=texts[1::2], config=config, out=tmp_path / f"half-{name}", **options
        )
        assert chosen.counts["documents"] == 20
        assert chosen.dataset_digest == good.dataset_digest
    with pytest.raises(InputError, match="keep filters `documents`"):
        build_shards("a.txt", keep=bool, out=tmp_path / "out", **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(clozeline.build_shards, "a.txt", tokenizer="t", max_sequence_length=64),
         r"build_shards\(\) has no option 'max_sequence_length'; did you mean max_seq_length\?"),
        (partial(clozeline.DataConfig, max_seq_len=64),
         r"DataConfig\(\) has no option 'max_seq_len'; did you mean max_seq_length\?"),
        (partial(clozeline.FinetuneConfig, lr=1), "no option 'lr'; did you mean learning_rate"),
        (partial(clozeline.finetune, "run", "a.csv", epoch=1), "did you mean epochs"),
        (partial(clozeline.pretrain, "s", training={"for_": "1m"}), "config is dict; give its"),
        (partial(clozeline.pretrain, "s", resum=True), "no option 'resum'; did you mean resume"),
        (partial(clozeline.pretrain, "s", preset="nano"), "no option 'preset'; give it as model"),
        (partial(clozeline.pretrain, "s", masking="whole-words"), "masking is 'whole-words'; give"),
        (partial(clozeline.finetune, "r", "a.csv", seed=0.5), "seed is 0.5; give it as int"),
        (partial(clozeline.finetune, "r", "a.csv", label_efficiency=[16]), "give it as str"),
        (partial(clozeline.build_shards, documents=["A text.", 7], tokenizer="t"),
         "^documents: number 1 is of type int; give texts, or dicts with"),
        (partial(clozeline.build_shards, documents=[{"body": "a"}], tokenizer="t"),
         "^documents: number 0 is of type dict with body; give texts, or dicts with"),
        (partial(clozeline.build_shards, documents=["a"], tokenizer="t", keep=lambda _: False),
         "there is no document, or `keep` leaves none"),
        (partial(clozeline.build_shards, documents="A text.", tokenizer="t"),
         "^documents is one str; give several texts or dicts, or a table"),
        (partial(clozeline.build_shards, "a.txt", documents=["A text."], tokenizer="t"),
         "^sources and documents are both given; leave one of them out"),
        (partial(clozeline.build_shards, documents=["a"], tokenizer="t", keep="all"),
         "keep is 'all'; give a function"),
        (partial(clozeline.build_shards, "a.txt", tokenizer="t", pairs="segmnts"),
         "pairs is 'segmnts'; it must be .* packed; did you mean segments"),
        (partial(clozeline.export, "run", form="tf"), "form is 'tf'; it must be one of"),
        (partial(clozeline.build_shards, "a.txt", tokenizer="t", exclude=7), "7; give a str"),
    ],
)  # fmt: skip
def test_a_misspelt_or_impossible_option_is_one_line(call, message, tmp_path):
    with pytest.raises(clozeline.ClozelineError, match=message):
        call(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(clozeline.predict, "c", filez="a"), r"^predict\(\) has .*'filez'; .* mean files"),
        (partial(clozeline.predict, "c", batch_size="3"), "batch_size is '3'; give it as int"),
        (partial(clozeline.FinetuneConfig, text=None), "text is None; give it as str"),
        (partial(clozeline.load_classifier, "c", device="no"), "device is 'no'; give cpu, cuda"),
        (partial(clozeline.Loader, "s", batch_sise=3), r"^Loader\(\) .* did you mean batch_size"),
        (partial(clozeline.BertConfig, hidden_sise=3), "hidden_sise; did you mean hidden_size"),
    ],
)  # fmt: skip
def test_a_misspelt_keyword_of_any_function_is_one_line(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_one_name_or_a_list_is_good_where_several_belong():
    named = [clozeline.DataConfig(text_columns=names) for names in ("title", ["title"])]
    assert {*named} == {clozeline.DataConfig(text_columns=("title",))}


def test_the_pipelines_of_the_manual_run_as_printed(corpus, tmp_path, monkeypatch):
    printed = [code for language, code in blocks(PAGE.read_text()) if language == "python"]
    assert len(printed) == 3
    (tmp_path / "articles").mkdir()
    (tmp_path / "notes").mkdir()
    short = "A short article, which the first pipeline leaves out."
    write_parquet(tmp_path / "articles" / "a.parquet", [*articles(60), short])
    lines = [text.replace("\n", " ") for text in articles(20)]
    (tmp_path / "notes" / "a.txt").write_text("\n".join(lines))
    shutil.copytree(corpus / "tokenizer", tmp_path / "work" / "tokenizer")
    monkeypatch.chdir(tmp_path)
    for code in printed:
        exec(code, {"__name__": "printed"})
    assert read_manifest(tmp_path / "work" / "long").counts["documents"] == 60
    assert read_manifest(tmp_path / "work" / "notes").counts["documents"] == 20
    for name in ("long", "notes"):
        assert verify(tmp_path / "work" / name) == []
    assert list((tmp_path / "work" / "examples").glob("train-00003-of-00004.arrow.*.parquet"))
