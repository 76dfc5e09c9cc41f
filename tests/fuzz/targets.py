"""What is fuzzed: bytes to a parser, and what must hold of what it makes of them.

A parser returns, or raises its documented error in one line. Anything else is a finding, and so is
a document that depends on the size of blocks.
"""

import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from clozeline.model.huggingface.config import read_huggingface_config
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.json_files import sealed
from clozeline.pipeline.dataset.manifest import MANIFEST, read_manifest
from clozeline.pipeline.dataset.shards import checksum
from clozeline.pipeline.sentences.punkt import PunktData
from clozeline.pipeline.sentences.splitter import SentenceSplitter
from clozeline.pipeline.sources.documents import Documents
from clozeline.pipeline.sources.formats import list_blocks, read_block, read_table
from clozeline.pipeline.sources.mediawiki.markup import over_budget
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.tokenization.train_tokenizer import adopt_vocabulary
from clozeline.pipeline.tokenization.vocabulary import SPECIAL_TOKENS
from clozeline.train.artifacts.huggingface import read_tokenizer
from tests.support.small import small_tokenizer
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_sources import strip_markup

LONGEST_MARKUP = 20_000  #: characters; mwparserfromhell is slow, and a short page shows as much


@dataclass(frozen=True)
class Target:
    """A parser, and files that it accepts."""

    run: Callable[[bytes], object]
    seeds: tuple[bytes, ...]


@cache
def scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="clozeline-fuzz-"))


def written(name: str, data: bytes) -> Path:
    path = scratch() / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def refused_in_one_line(read: Callable[[], Any]) -> Any:
    """The result; None where the parser refuses. An error of another kind passes through."""
    try:
        return read()
    except ValueError as error:
        is_documented = isinstance(error, InputError) or type(error) is ValueError
        if not is_documented or len(str(error).splitlines()) != 1:
            raise
        return None


def documents_of(path: Path, *, block_bytes: int) -> tuple[list[str], Counter[str]]:
    """All texts of a file, and how many documents were rejected, by reason."""
    found = Documents()
    for block in list_blocks([str(path)], block_bytes=block_bytes):
        for chunk in read_block(block, chunk_bytes=block_bytes):
            found.texts += chunk.texts
            found.rejected += chunk.rejected
    return found.texts, Counter(rejected.reason for rejected in found.rejected)


def read_source(name: str, data: bytes) -> None:
    """The documents are the same, in whatever blocks the file is read."""
    path = written(name, data)
    whole = refused_in_one_line(lambda: documents_of(path, block_bytes=1 << 20))
    if whole is not None and len(data) < 300:  # a block is 16 bytes; each opens the file
        cut = documents_of(path, block_bytes=16 + len(data) % 7)
        assert cut == whole, (cut, whole)


def read_markup(data: bytes) -> None:
    """Lines without space around them, none empty, of any text."""
    markup = data[:LONGEST_MARKUP].decode("utf-8", "replace")
    if over_budget(markup) is None:
        text = strip_markup(markup)
        assert not text or all(line.strip() == line != "" for line in text.split("\n"))


def read_csv(data: bytes) -> None:
    """Two columns of valid text without nulls."""
    path = written("a.csv", data)
    table = refused_in_one_line(lambda: read_table(str(path), ["text", "label"]))
    if table is not None:
        table.validate(full=True)
        assert table.column("text").null_count == 0


# --- files of our own -----------------------------------------------------------------------------


def use_tokenizer(tokenizer: Tokenizer | None) -> None:
    """Whatever was accepted encodes text and can be written."""
    if tokenizer is not None:
        assert tokenizer.encode_batch(["a b\u00e9"])
        json.loads(tokenizer.library.to_str())
        "".join(tokenizer.tokens).encode()


def read_vocabulary(name: str, data: bytes) -> None:
    """A vocabulary for BERT, or a reason why not."""
    path = written(name, data)
    adopt = partial(adopt_vocabulary, path, cased=False)
    use_tokenizer(refused_in_one_line(adopt))


def read_punkt(data: bytes) -> None:
    """Parameters that split text."""
    folder = written("punkt/punkt.json", data).parent
    if not (folder / "tokenizer.json").exists():
        small_tokenizer().save(scratch() / "plain")
        (folder / "tokenizer.json").write_bytes((scratch() / "plain/tokenizer.json").read_bytes())
    tokenizer = refused_in_one_line(lambda: load_tokenizer(folder))
    if tokenizer is not None:
        splitter = refused_in_one_line(
            lambda: SentenceSplitter(PunktData.from_json(tokenizer.punkt))
        )
        if splitter is not None:
            splitter.split(b"Dr. Oz of no. 5 came. he left. It is 4 p.m. In town.")


def read_manifest_file(data: bytes) -> None:
    """A manifest whose seal and digest fit; otherwise nothing behind them would be reached."""
    with suppress(ValueError, RecursionError):
        values = json.loads(data)
        if isinstance(values, dict):
            data = json.dumps(sealed(values)).encode()
    folder = written(f"dataset/{MANIFEST}", data).parent
    manifest = refused_in_one_line(lambda: read_manifest(folder))
    if manifest is not None:
        assert manifest.num_examples("train") + manifest.num_examples("validation") >= 0
        assert np.isfinite(manifest.log_unigram).all()
        assert manifest.unigram_loss >= 0


@cache
def data_set(format: str) -> Any:
    from clozeline.train.data.shard_set import ShardSet

    config = replace(SMALL, format=format)
    folder = write_data_set(scratch() / format, train=(6,), config=config)
    return ShardSet(folder, "train")


def read_shard_file(format: str, data: bytes) -> None:
    """Rows within all limits, though no checksum protects them."""
    shards = data_set(format)
    [entry] = shards.entries
    (shards.folder / entry.name).write_bytes(data)
    entry = replace(entry, bytes=len(data), checksum=checksum(data))
    rows = refused_in_one_line(lambda: shards._read_shard(entry))
    if rows is not None:
        original = rows.unmasked().input_ids.values
        assert int(original.max(initial=0)) < shards.manifest.vocab_size


def read_model_config(data: bytes) -> None:
    folder = written("model/config.json", data).parent
    refused_in_one_line(lambda: read_huggingface_config(folder))


def read_tokenizer_config(data: bytes) -> None:
    folder = written("hf/tokenizer_config.json", data).parent
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL_TOKENS, "a"]))
    use_tokenizer(refused_in_one_line(lambda: read_tokenizer(folder)))


# --- mutations of JSON that stays JSON: those of bytes seldom get past the parser -----------------

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 10**7, 10**30, 1e308, float("nan"), 0.5),
    *("", "a", "\ud800", "\0", "0", "x" * 300, [], {}, [[]], [None], {"": None}, ["a", 1]),
)


def mutate_json(data: bytes, seed: int) -> bytes | None:
    """The data with one to three values replaced, removed, doubled or moved; None if not JSON."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return None
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 3)):
        places = list(_places(values))
        if not places:
            return json.dumps(draw.choice(HOSTILE)).encode()
        _change(*draw.choice(places), values, draw)
    return json.dumps(values).encode()


def _places(values: Any) -> Any:
    """Each (container, key) of a JSON value."""
    pending = [values]
    while pending:
        container = pending.pop()
        if isinstance(container, dict | list):
            keys = list(container) if isinstance(container, dict) else range(len(container))
            yield from ((container, key) for key in keys)
            pending += [container[key] for key in keys]


def _change(container: Any, key: Any, values: Any, draw: random.Random) -> None:
    match draw.randrange(6):
        case 0 if isinstance(container, dict):
            container[draw.choice(["", "x", key + "_"])] = container.pop(key)
        case 1:
            del container[key]
        case 2 if isinstance(container, list):
            container.insert(key, container[key])
        case 3 if isinstance(container[key], int | float):
            container[key] = draw.choice([-1, 1, 1000]) * container[key] + draw.choice([0, 1])
        case 4:  # a copy, since a container inside itself is no JSON
            container[key] = json.loads(json.dumps(draw.choice(list(_places(values)))[0]))
        case _:
            container[key] = json.loads(json.dumps(draw.choice(HOSTILE)))


RULES = PunktData(
    language="rules",
    abbrev_types=["co", "dr", "e.g", "mr", "no", "p.m", "r", "u.s"],
    collocations=[["##number##", "bach"], ["end", "of"]],
    sent_starters=["the", "in"],
    ortho_context={"he": 34, "it": 64, "she": 8, "no": 46, "in": 2},
)

TEXT = "Rome is old. It is a city of Dr. Ray.\nThe second line.\n\nOslo is new.\r\n\r\n é \0 end"
DUMP = """<mediawiki xml:lang="en"><siteinfo><namespaces><namespace key="0" />
<namespace key="6">File</namespace></namespaces></siteinfo>
<page><title>Rome &amp; b</title><ns>0</ns><id>7</id><revision><id>9</id><model>wikitext</model>
<format>text/x-wiki</format><text bytes="9" xml:space="preserve">'''Rome''' is [[old|new]].</text>
</revision></page><page><title>R</title><ns>0</ns><id>8</id><redirect title="Rome" /><revision>
<text>#REDIRECT [[Rome]]</text></revision></page></mediawiki>"""
WIKITEXT = """'''Rome''' is a [[city|town]] in [[Italy]].<ref name="a">{{cite|x}}</ref> {{Infobox|a=
{{b}}}}
== History ==
* It ''was'' [http://a.b old] &amp; big<!-- no --> __NOTOC__ <nowiki>[[x]]</nowiki>
{| class="a"
| b
|}
[[File:a.png|thumb|A [[b]] c]] <math>x</math> end."""
CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_act": "gelu",
    "max_position_embeddings": 16,
    "vocab_size": 30,
    "id2label": {"0": "a", "1": "b"},
}
MODERN = {
    "architectures": ["ModernBertForMaskedLM"],
    "model_type": "modernbert",
    "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
    "num_hidden_layers": 3,
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 160000.0}},
    "classifier_pooling": "mean",
}


def as_json(values: object) -> bytes:
    return json.dumps(values).encode()


@cache  # the runs of a target overwrite the file
def file_of(format: str) -> bytes:
    shards = data_set(format)
    return bytes((shards.folder / shards.entries[0].name).read_bytes())


def tokenizer_bytes() -> bytes:
    small_tokenizer().save(scratch() / "tokenizer")
    return (scratch() / "tokenizer" / "tokenizer.json").read_bytes()


BERT_TOKENIZER = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
LINES = b'{"text": "One."}\n{"text": "\\u00e9", "id": 5}\n\n{"a": [1]}\n'
ARTICLE = b'<doc id="1" title="Rome">\nRome\n\nRome is old &lt;b&gt;.\n</doc>\n'
TABLE = b'text,label\n"One, two",a\nThree,b\n"Fo""ur",a\n'


def manifest_bytes() -> bytes:
    return (write_data_set(scratch() / "seed", train=(3,)) / MANIFEST).read_bytes()


def source(name: str, *seeds: bytes) -> Target:
    return Target(partial(read_source, name), seeds)


def vocabulary(name: str, seed: bytes) -> Target:
    return Target(partial(read_vocabulary, name), (seed,))


def shard(format: str) -> Target:
    return Target(partial(read_shard_file, format), (file_of(format),))


#: The cheapest first.
TARGETS: dict[str, Callable[[], Target]] = {
    "punkt.json": lambda: Target(read_punkt, (as_json(RULES.to_json()),)),
    "config.json": lambda: Target(read_model_config, (as_json(CONFIG), as_json(MODERN))),
    "tokenizer_config.json": lambda: Target(read_tokenizer_config, (as_json(BERT_TOKENIZER),)),
    "vocab.txt": lambda: vocabulary("vocab.txt", "\n".join([*SPECIAL_TOKENS, "##é"]).encode()),
    "tokenizer.json": lambda: vocabulary("tokenizer.json", tokenizer_bytes()),
    "manifest.json": lambda: Target(read_manifest_file, (manifest_bytes(),)),
    "wikitext": lambda: Target(read_markup, (WIKITEXT.encode(),)),
    "text": lambda: source("a.txt", TEXT.encode()),
    "jsonl": lambda: source("a.jsonl", LINES),
    "wikiextractor": lambda: source("wiki_00", ARTICLE * 2),
    "dump": lambda: source("a.xml", DUMP.encode()),
    "csv": lambda: Target(read_csv, (TABLE,)),
    "arrow": lambda: shard("arrow"),
    "tar": lambda: shard("webdataset"),
}
