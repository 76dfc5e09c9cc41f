"""Examples as a person reads them, on a page or in a terminal (`clozeline inspect`).

train-00000-of-00004.arrow, row 12: 27 tokens, B follows A
  A        the [1 MASK] sat on the [2 river] .
  B        it was asleep .
  masked   1 cat   2 mat (shown as river)

A packed row is shown as piece 1, piece 2 and so on.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from clozeline.pipeline.common.config_checks import counted
from clozeline.pipeline.common.counter_rng import random_bits, stream_key, uniform_below
from clozeline.pipeline.common.errors import escaped
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.curation.dropped import mixture_lines, unmasked_lines
from clozeline.pipeline.dataset.buckets import TRAIN
from clozeline.pipeline.dataset.manifest import TOKENIZER, Manifest, read_manifest
from clozeline.pipeline.dataset.schema import B_FOLLOWS_A, B_IS_RANDOM, NO_PAIR, Examples
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.tokenization.vocabulary import CONTINUATION, join_bytes

SPACES = re.compile("  +")  # a word mark alone, then a token that has its own


@dataclass(frozen=True, kw_only=True)
class ShownToken:
    """One token; `mask` and `original` only if it was masked."""

    text: str  # as the model sees it: "##ing"
    spaced: str  # the same in running text, with the space before it: " the", "ing"
    is_special: bool
    mask: Literal["masked", "random", "kept"] | None
    original: str


@dataclass(frozen=True, kw_only=True)
class ShownExample:
    """One row: where it is, what it is, and its spans, named A and B or piece 1, piece 2, ..."""

    title: str  # "train-00000-of-00004.arrow, row 12: 27 tokens, B follows A"
    spans: Sequence[tuple[str, Sequence[ShownToken]]]
    documents: Sequence[str]  # hashes of its spans' documents, 16 hexadecimal digits each


def random_examples(
    folder: AnyPath, manifest: Manifest, tokenizer: Tokenizer, *, number: int, seed: int
) -> Iterator[ShownExample]:
    """Examples of the training shards, the same ones for the same seed."""
    shards = [shard for shard in manifest.of_split(TRAIN) if shard.rows]
    bits = random_bits(stream_key(seed, "inspect"), np.arange(number)[:, None], np.arange(2))
    for for_shard, for_row in bits if shards else ():
        shard = shards[int(uniform_below(for_shard, len(shards)))]
        examples = read_shard(folder / shard.name, expected=shard.checksum)
        row = int(uniform_below(for_row, len(examples)))
        title = f"{shard.name}, row {row}"
        negative = manifest.config.negative_pairs
        yield shown_example(examples, row, tokenizer, title=title, negative_pairs=negative)


def shown_example(
    examples: Examples, row: int, tokenizer: Tokenizer, *, title: str, negative_pairs: str
) -> ShownExample:
    """A row of a shard."""
    example = examples.slice(row, row + 1)
    tokens, length_a = list(_tokens(example, tokenizer)), int(example.length_a[0])
    if example.piece_lengths is not None:
        lengths = example.piece_lengths.values.tolist()
        kind = counted(len(lengths), "piece")
        names = [f"piece {n + 1}" for n in range(len(lengths))]
    else:
        kinds = {NO_PAIR: "no B", B_FOLLOWS_A: "B follows A", B_IS_RANDOM: f"B is {negative_pairs}"}
        kind, names = kinds[int(example.next_sentence_label[0])], ["A", "B"]
        lengths = [length_a, len(tokens) - length_a]
    rest = iter(tokens)
    spans = [(name, list(islice(rest, n))) for name, n in zip(names, lengths, strict=True) if n]
    return ShownExample(
        title=f"{title}: {len(tokens)} tokens, {kind}",
        spans=spans,
        documents=[f"{document:016x}" for document in documents_of(examples, row)],
    )


def documents_of(examples: Examples, row: int) -> list[int]:
    """The documents of a row, each once: that of A and that of B, or those of its pieces."""
    if (pieces := examples.piece_documents) is not None:
        documents = pieces.slice(row, row + 1).values.tolist()
    else:
        has_b = bool(examples.next_sentence_label[row] != NO_PAIR)
        documents = [int(examples.document_a[row]), *([int(examples.document_b[row])] * has_b)]
    return list(dict.fromkeys(documents))


def _tokens(example: Examples, tokenizer: Tokenizer) -> Iterator[ShownToken]:
    positions, labels = example.masked_lm_positions.values, example.masked_lm_labels.values
    originals = dict(zip(positions.tolist(), labels.tolist(), strict=True))
    for position, shown in enumerate(example.input_ids.values.tolist()):
        original = originals.get(position)
        how: Literal["masked", "random", "kept"] = "kept" if shown == original else "random"
        yield ShownToken(
            text=tokenizer.shown_tokens[shown],
            spaced=tokenizer.texts[shown],
            is_special=original is None and bool(tokenizer.is_special[shown]),
            mask=None if original is None else "masked" if shown == tokenizer.mask_id else how,
            original="" if original is None else tokenizer.shown_tokens[original],
        )


def inspect_dataset(folder: AnyPath, *, number: int, seed: int, width: int) -> Iterator[str]:
    """A summary of the data set, then `number` random examples, as lines of text."""
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    config, read = manifest.config, manifest.counts
    yield (
        f"{manifest.num_examples(TRAIN):,} training and "
        f"{counted(manifest.num_examples('validation'), 'validation example')} "
        f"of at most {config.max_seq_length} tokens, pairs: {config.pairs}, "
        f"vocabulary {manifest.vocab_size:,}"
    )
    units = ("document", "sentence", "token")
    yield f"from {', '.join(counted(read.get(f'{unit}s', 0), unit) for unit in units)}"
    if manifest.dropped:
        dropped = ", ".join(f"{name} {count:,}" for name, count in manifest.dropped.items())
        yield f"dropped: {dropped}"
    yield from unmasked_lines(manifest)
    yield from mixture_lines(manifest)
    for example in random_examples(folder, manifest, tokenizer, number=number, seed=seed):
        yield ""
        yield from example_lines(example, width=width)


def example_lines(example: ShownExample, *, width: int) -> Iterator[str]:
    """One row: its spans, masked tokens numbered, and the original tokens below."""
    yield example.title
    originals: list[str] = []
    for name, tokens in example.spans:
        texts = []
        for token in tokens:
            if not token.mask:
                texts.append(token.spaced)
                continue
            number = len(originals) + 1
            texts.append(f" [{number} {token.text.strip('[]')}]")
            ways = {"masked": "", "kept": " (kept)", "random": f" (shown as {token.text})"}
            originals.append(f"{number} {token.original}{ways[token.mask]}")
        yield from _paragraph(name, _join(texts[name != "B" : -1]), width)  # without [CLS], [SEP]
    yield from _paragraph("masked", "   ".join(originals), width)


def _join(texts: list[str]) -> str:
    """The texts of tokens as one; a first token that continues a word has its ##.

    Control characters, which byte-level BPE keeps, are escaped.
    """
    begin = "" if texts[0].startswith(" ") else CONTINUATION
    return begin + escaped(SPACES.sub(" ", join_bytes("".join(texts))).removeprefix(" "))


def _paragraph(label: str, text: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(
        text, width=max(width, 40), initial_indent=f"  {label:<9}", subsequent_indent=" " * 11
    )
    return wrapped or [f"  {label}"]
