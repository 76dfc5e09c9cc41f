"""`clozeline inspect`: examples as a person reads them.

train-00000-of-00004.arrow, row 12: 27 tokens, B follows A
  A        the [1 MASK] sat on the [2 river] .
  B        it was asleep .
  masked   1 cat   2 mat (shown as river)

A packed row is shown as piece 1, piece 2 and so on.
"""

import re
import textwrap
from collections.abc import Iterator
from itertools import islice

import numpy as np

from clozeline.pipeline.common.counter_rng import random_bits, stream_key, uniform_below
from clozeline.pipeline.common.errors import escaped
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.units import counted
from clozeline.pipeline.dataset.buckets import TRAIN
from clozeline.pipeline.dataset.manifest import TOKENIZER, Manifest, read_manifest
from clozeline.pipeline.dataset.schema import Examples
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.pipeline.report.dropped import mixture_lines, unmasked_lines
from clozeline.pipeline.report.shown_example import mask_kind, parts_of
from clozeline.pipeline.tokenization.token_texts import join_bytes
from clozeline.pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from clozeline.pipeline.tokenization.vocabulary import CONTINUATION

INDENT = " " * 11
SPACES = re.compile("  +")  # a word mark alone, then a token that has its own


def inspect_dataset(folder: AnyPath, *, number: int, seed: int, width: int) -> Iterator[str]:
    """A summary of the data set, then `number` random examples, as lines of text."""
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    yield from _summary(manifest)
    shards = [shard for shard in manifest.of_split(TRAIN) if shard.rows]
    bits = random_bits(stream_key(seed, "inspect"), np.arange(number)[:, None], np.arange(2))
    for for_shard, for_row in bits:
        shard = shards[int(uniform_below(for_shard, len(shards)))]
        examples = read_shard(folder / shard.name, expected=shard.checksum)
        row = int(uniform_below(for_row, len(examples)))
        yield ""
        yield from show_example(
            examples,
            row,
            tokenizer,
            title=f"{shard.name}, row {row}",
            width=width,
            negative_pairs=manifest.config.negative_pairs,
        )


def show_example(
    examples: Examples,
    row: int,
    tokenizer: Tokenizer,
    *,
    title: str,
    width: int,
    negative_pairs: str = "random",
) -> Iterator[str]:
    """One row: A and B, masked tokens numbered, and the original tokens below."""
    example = examples.slice(row, row + 1)
    ids = example.input_ids.values
    texts = [tokenizer.texts[token] for token in ids]
    originals = []
    masked = zip(example.masked_lm_positions.values, example.masked_lm_labels.values, strict=True)
    for number, (position, label) in enumerate(masked, start=1):
        shown, original = tokenizer.shown_tokens[ids[position]], tokenizer.shown_tokens[label]
        texts[position] = f" [{number} {shown.strip('[]')}]"
        ways = {"masked": "", "kept": " (kept)", "random": f" (shown as {shown})"}
        way = ways[mask_kind(ids[position], label, tokenizer)]
        originals.append(f"{number} {original}{way}")
    kind, lengths = parts_of(example, negative_pairs)
    yield f"{title}: {len(ids)} tokens, {kind}"
    rest = iter(texts)
    for part, length in lengths.items():
        of_part = list(islice(rest, length))[:-1]  # without [SEP]
        yield from _paragraph(part, _join(of_part[part != "B" :]), width)  # and [CLS]
    yield from _paragraph("masked", "   ".join(originals), width)


def _summary(manifest: Manifest) -> Iterator[str]:
    config, read = manifest.config, manifest.counts
    yield (
        f"{manifest.num_examples(TRAIN):,} training and "
        f"{counted(manifest.num_examples('validation'), 'validation example')} "
        f"of at most {config.max_seq_length} tokens, pairs: {config.pairs}, "
        f"vocabulary {manifest.vocab_size:,}"
    )
    yield (
        f"from {counted(read.get('documents', 0), 'document')}, "
        f"{counted(read.get('sentences', 0), 'sentence')}, "
        f"{counted(read.get('tokens', 0), 'token')}"
    )
    if manifest.dropped:
        dropped = ", ".join(f"{name} {count:,}" for name, count in manifest.dropped.items())
        yield f"dropped: {dropped}"
    yield from unmasked_lines(manifest)
    yield from mixture_lines(manifest)


def _join(texts: list[str]) -> str:
    """The texts of tokens as one; a first token that continues a word has its ##.

    Control characters, which byte-level BPE keeps, are escaped.
    """
    begin = "" if texts[0].startswith(" ") else CONTINUATION
    return begin + escaped(SPACES.sub(" ", join_bytes("".join(texts))).removeprefix(" "))


def _paragraph(label: str, text: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(
        text, width=max(width, 40), initial_indent=f"  {label:<9}", subsequent_indent=INDENT
    )
    return wrapped or [f"  {label}"]
