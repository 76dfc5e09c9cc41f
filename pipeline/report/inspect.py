"""`clozeline inspect`: examples as a person reads them.

train-00000-of-00004.arrow, row 12: 27 tokens, B follows A
  A        the [1 MASK] sat on the [2 river] .
  B        it was asleep .
  hidden   1 cat   2 mat (shown as river)
"""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.common.counter_rng import random_bits, stream_key, uniform_below
from pipeline.dataset.buckets import TRAIN
from pipeline.dataset.manifest import TOKENIZER, Manifest, read_manifest
from pipeline.dataset.schema import B_FOLLOWS_A, B_IS_RANDOM, NO_PAIR, Examples
from pipeline.dataset.shards import read_shard
from pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer

KINDS = {B_FOLLOWS_A: "B follows A", B_IS_RANDOM: "B is random", NO_PAIR: "no B"}
INDENT = " " * 11


def inspect_dataset(folder: Path, *, number: int, seed: int, width: int) -> Iterator[str]:
    """The facts of the data set, then `number` examples drawn with `seed`, as lines of text."""
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    yield from _facts(manifest)
    shards = [shard for shard in manifest.of_split(TRAIN) if shard.rows]
    draws = random_bits(stream_key(seed, "inspect"), np.arange(number)[:, None], np.arange(2))
    for draw in draws:
        shard = shards[int(uniform_below(draw[0], len(shards)))]
        examples = read_shard(folder / shard.name)
        row = int(uniform_below(draw[1], len(examples)))
        yield ""
        yield from show_example(examples, row, tokenizer, name=shard.name, width=width)


def show_example(
    examples: Examples, row: int, tokenizer: Tokenizer, *, name: str, width: int
) -> Iterator[str]:
    """One row: A and B apart, what is hidden numbered, and the answers below."""
    example = examples.take(np.array([row]))
    ids = example.input_ids.values
    words = [tokenizer.tokens[token] for token in ids]
    answers = []
    masked = zip(example.masked_lm_positions.values, example.masked_lm_labels.values, strict=True)
    for number, (position, label) in enumerate(masked, start=1):
        shown, hidden = words[position], tokenizer.tokens[label]
        words[position] = f"[{number} {shown.strip('[]')}]"
        answers.append(f"{number} {hidden}{_how(ids[position], label, tokenizer)}")
    kind = KINDS[int(example.next_sentence_label[0])]
    length_a = int(example.length_a[0])
    yield f"{name}, row {row}: {len(ids)} tokens, {kind}"
    yield from _paragraph("A", _sentence(words[1 : length_a - 1]), width)
    if length_a < len(ids):
        yield from _paragraph("B", _sentence(words[length_a:-1]), width)
    yield from _paragraph("hidden", "   ".join(answers), width)


def _facts(manifest: Manifest) -> Iterator[str]:
    config = manifest.config
    read = manifest.counts
    yield (
        f"{manifest.num_examples(TRAIN):,} training and {manifest.num_examples('validation'):,} "
        f"validation examples of at most {config.max_seq_length} tokens, pairs: {config.pairs}, "
        f"vocabulary {manifest.vocab_size:,}"
    )
    yield (
        f"from {read.get('documents', 0):,} documents, {read.get('sentences', 0):,} sentences, "
        f"{read.get('tokens', 0):,} tokens"
    )
    if manifest.dropped:
        left_out = ", ".join(f"{name} {count:,}" for name, count in manifest.dropped.items())
        yield f"left out: {left_out}"


def _how(shown: int, label: int, tokenizer: Tokenizer) -> str:
    if shown == tokenizer.mask_id:
        return ""
    return " (left as it is)" if shown == label else f" (shown as {tokenizer.tokens[shown]})"


def _sentence(words: list[str]) -> str:
    """Pieces joined to words; one that begins the stretch, or is numbered, still shows its ##."""
    first, *others = words
    return first + "".join(w[2:] if w.startswith("##") else f" {w}" for w in others)


def _paragraph(label: str, text: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(
        text, width=max(width, 40), initial_indent=f"  {label:<9}", subsequent_indent=INDENT
    )
    return wrapped or [f"  {label}"]
