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

from clozeline.pipeline.common.errors import escaped
from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.common.units import counted
from clozeline.pipeline.curation.dropped import mixture_lines, unmasked_lines
from clozeline.pipeline.dataset.buckets import TRAIN
from clozeline.pipeline.dataset.manifest import TOKENIZER, Manifest, read_manifest
from clozeline.pipeline.report.shown_example import ShownExample, random_examples
from clozeline.pipeline.tokenization.token_texts import join_bytes
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.pipeline.tokenization.vocabulary import CONTINUATION

INDENT = " " * 11
SPACES = re.compile("  +")  # a word mark alone, then a token that has its own


def inspect_dataset(folder: AnyPath, *, number: int, seed: int, width: int) -> Iterator[str]:
    """A summary of the data set, then `number` random examples, as lines of text."""
    manifest = read_manifest(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    yield from _summary(manifest)
    for example in random_examples(folder, manifest, tokenizer, number=number, seed=seed):
        yield ""
        yield from example_lines(example, width=width)


def example_lines(example: ShownExample, *, width: int) -> Iterator[str]:
    """One row: its spans, masked tokens numbered, and the original tokens below."""
    yield f"{example.title}: {', '.join(example.notes)}"
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
