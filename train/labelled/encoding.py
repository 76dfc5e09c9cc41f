"""Texts to token ids to tensors, for a classifier.

    "Great", "I liked it a lot"  ->  [CLS] great [SEP] i liked it a lot [SEP]      length_a 3
                                    truncated to 8:   [CLS] great [SEP] i liked it a [SEP]
                                    its start cut:    [CLS] great [SEP] liked it a lot [SEP]
    "Great", a prompt               ->  [CLS] it was [MASK] . great [SEP]

The masked-LM head knows which words fit at the [MASK] of a prompt, so a classifier that starts with
the words of its classes needs few labels (Schick & Schuetze 2021, "Exploiting Cloze Questions for
Few Shot Text Classification and Natural Language Inference").

B batch, S sequence. A pair that is too long loses tokens of its longer text, one at a
time. Where the middle is cut, a quarter of what is kept is the start of the text (Sun et al. 2019,
"How to Fine-Tune BERT for Text Classification?": 128 and 382 of 510 tokens).
Batches are padded to one of four fixed widths: short texts cost less, and there are still few
shapes (a new shape costs a compilation on CUDA and a kernel cache entry on CPU). In evaluation on a
CPU, batches are small and padded to a multiple of 8: 1.3 to 1.4 times as many texts per CPU second.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozeline.pipeline.common.counter_rng import permutation, stream_key
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.ragged import Offsets, Ragged, offsets_of, slice_indices
from clozeline.pipeline.tokenization.encoder import SentenceEncoder
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.train.config import Truncate
from clozeline.train.labelled.rows import Rows, Text

BATCHES_PER_WINDOW = 32  # batches whose rows are sorted by length together
MOST_PROMPT = 32  # tokens
ENCODED_AT_ONCE = 4_096  # texts
#: How many quarters of what is kept are the start of a text that is cut; the rest is its end.
QUARTERS: dict[Truncate, int] = {"end": 4, "start": 0, "middle": 1}
WIDTHS = 4
CPU_WIDTH = 8  # S is a multiple of it in evaluation on a CPU
EVALUATION_BATCH, CPU_BATCH = 128, 16

Inputs = tuple[Tensor, Tensor, Tensor]  # of a model, see `Encoded.inputs`


@dataclass(frozen=True)
class Encoded:
    """N rows of token ids."""

    input_ids: Ragged  # uint32
    length_a: NDArray[np.int64]  # [N], tokens of [CLS] A [SEP], with a prompt
    is_cut: NDArray[np.bool_]  # [N], whether a row lost tokens
    max_seq_length: int
    pad_id: int

    def __len__(self) -> int:
        return len(self.input_ids)

    def take(self, rows: Rows) -> "Encoded":
        columns = self.input_ids.take(rows), self.length_a[rows], self.is_cut[rows]
        return Encoded(*columns, self.max_seq_length, self.pad_id)

    def inputs(self, rows: Rows, *, is_tight: bool = False) -> Inputs:
        """input_ids and token_type_ids, int64 [B, S], and attention_mask, bool [B, S].

        S is the smallest of the widths that fits all rows; with `is_tight` that of the longest
        one, rounded up to a multiple of 8.
        """
        lengths = self.input_ids.lengths[rows]
        widths = [-(-self.max_seq_length * n // WIDTHS) for n in range(1, WIDTHS + 1)]
        width = next(width for width in widths if width >= lengths.max())
        if is_tight:
            width = -(-int(lengths.max()) // CPU_WIDTH) * CPU_WIDTH
        positions = np.arange(min(width, self.max_seq_length))
        is_token = positions < lengths[:, None]
        input_ids = np.full(is_token.shape, self.pad_id, dtype=np.int64)
        input_ids[is_token] = self.input_ids.take(rows).values
        is_b = is_token & (positions >= self.length_a[rows, None])
        return (
            torch.from_numpy(input_ids),
            torch.from_numpy(is_b.astype(np.int64)),
            torch.from_numpy(is_token),
        )


@dataclass(frozen=True)
class Encoder:
    """Texts to rows of at most `max_seq_length` tokens; caches the words it has seen.

    Raises InputError for a prompt without one mask, and for a long one.
    """

    tokenizer: Tokenizer
    max_seq_length: int
    prompt: str | None = None  # before each text
    truncate: Truncate = "end"

    def __post_init__(self) -> None:
        ids, mask = self.prompt_ids, self.tokenizer.mask_token
        if self.prompt and (count := ids.count(self.tokenizer.mask_id)) != 1:
            raise InputError(
                f"--prompt {self.prompt!r} has {count} {mask}; give it one, where a word fits."
            )
        most = min(MOST_PROMPT, self.max_seq_length // 4)  # the rest is for the text
        if len(ids) > most:
            raise InputError(
                f"--prompt {self.prompt!r} has {len(ids)} tokens; give at most {most}, a quarter "
                "of --max-seq-length and no more than 32."
            )

    @cached_property
    def prompt_ids(self) -> list[int]:
        """What follows [CLS] in each row; none without a prompt."""
        return ids_with_masks(self.prompt, self.tokenizer) if self.prompt else []

    @property
    def mask_position(self) -> int:
        """Where the prompt's mask is in a row; 0 without a prompt."""
        return self.prompt_ids.index(self.tokenizer.mask_id) + 1 if self.prompt else 0

    @cached_property
    def _columns(self) -> SentenceEncoder:
        return SentenceEncoder(self.tokenizer)

    def encode(self, texts: Sequence[Text]) -> Encoded:
        """[CLS] A [SEP] or [CLS] A [SEP] B [SEP] of each, truncated; a prompt follows [CLS]."""
        pieces, first = self._pieces(texts), [self.tokenizer.cls_id, *self.prompt_ids]
        kept, before = [k for _, k in pieces], len(first)
        offsets = offsets_of(before + sum(kept) + len(kept))
        values = np.full(offsets[-1], self.tokenizer.sep_id, dtype=np.uint32)
        values[offsets[:-1, None] + np.arange(before)] = first
        starts = offsets[:-1] + before
        for p, k in pieces:
            head, tail = first_and_last(k, self.truncate)
            values[slice_indices(starts, head)] = p.values[slice_indices(p.offsets[:-1], head)]
            last = slice_indices(p.offsets[1:] - tail, tail)
            values[slice_indices(starts + head, tail)] = p.values[last]
            starts = starts + k + 1
        return Encoded(
            Ragged(values, offsets),
            before + kept[0] + 1,
            np.any([k < p.lengths for p, k in pieces], axis=0),
            self.max_seq_length,
            self.tokenizer.pad_id,
        )

    def shortened(self, texts: Sequence[Text]) -> list[Text]:
        """The part of each text that `encode` keeps, whole characters; a space for its middle."""
        columns = self._in_row(texts)
        for column, (p, kept) in zip(columns, self._pieces(texts), strict=True):
            head, tail = first_and_last(kept, self.truncate)
            for row in np.flatnonzero(kept < p.lengths).tolist():
                column[row] = self._cut(column[row], int(head[row]), int(tail[row]))
        if self.prompt and self.tokenizer.needs_space:
            columns[0] = [text.removeprefix(" ") for text in columns[0]]
        return list(zip(*columns, strict=True))

    def _pieces(self, texts: Sequence[Text]) -> list[tuple[Ragged, Offsets]]:
        """The ids of each column, and how many of each row's are kept."""
        pieces = list(map(self._ids, self._in_row(texts)))
        first, *second = (p.lengths for p in pieces)
        room = self.max_seq_length - 1 - len(self.prompt_ids) - len(pieces)
        kept = longest_first(first, *second, room=room) if second else [np.minimum(first, room)]
        return list(zip(pieces, kept, strict=True))

    def _ids(self, column: list[str]) -> Ragged:
        """The ids of each text; some thousand at a time, since the library needs much memory."""
        starts = range(0, max(len(column), 1), ENCODED_AT_ONCE)
        parts = [self._columns.encode(column[start : start + ENCODED_AT_ONCE]) for start in starts]
        values, lengths = zip(*parts, strict=True)
        return Ragged(np.concatenate(values), offsets_of(np.concatenate(lengths)))

    def _in_row(self, texts: Sequence[Text]) -> list[list[str]]:
        """The columns as they are read: after a prompt the first token may depend on a space."""
        first, *second = map(list, zip(*texts, strict=True))
        if self.prompt:
            first = list(map(self.tokenizer.after_space, first))
        return [first, *second]

    def _cut(self, text: str, head: int, tail: int) -> str:
        """The characters of the first and the last tokens, which only the slow library knows."""
        spans = self.tokenizer.library.encode(text, add_special_tokens=False).offsets
        parts = [text[: spans[head - 1][1]]] if head else []
        return " ".join([*parts, text[spans[-tail][0] :]] if tail else parts)


def first_and_last(kept: Offsets, truncate: Truncate) -> tuple[Offsets, Offsets]:
    """How many of `kept` tokens are from the start of each text, and how many from its end.

    6 with `middle` -> 2 and 4;  with `end` -> 6 and 0
    """
    first = -(-kept * QUARTERS[truncate] // 4)
    return first, kept - first


def longest_first(lengths_a: Offsets, lengths_b: Offsets, *, room: int) -> tuple[Offsets, Offsets]:
    """How many tokens of each A and B to keep so that they fit into `room`, the longer cut first.

    7 and 2 into 6 -> 4 and 2;  7 and 9 into 6 -> 3 and 3;  as Hugging Face's `longest_first`.
    """
    is_short = lengths_a + lengths_b <= room
    shorter = np.minimum(np.minimum(lengths_a, lengths_b), room // 2)
    kept_a = np.where(lengths_a > lengths_b, room - shorter, shorter)
    kept_b = room - kept_a
    return np.where(is_short, lengths_a, kept_a), np.where(is_short, lengths_b, kept_b)


def training_batches(
    lengths: NDArray[np.int64], *, batch_size: int, seed: int, epoch: int
) -> list[Rows]:
    """The rows of each batch of an epoch: every row once, in an order that depends on the seed.

    Rows are shuffled; inside windows of 32 batches they are sorted by length, so that batches have
    little padding; then the batches are shuffled. One batch may be short.
    """
    order = permutation(stream_key(seed, "finetune/rows", epoch), len(lengths))
    batches: list[Rows] = []
    window = BATCHES_PER_WINDOW * batch_size
    for start in range(0, len(order), window):
        batches += _by_length(order[start : start + window], lengths, batch_size)
    shuffled = permutation(stream_key(seed, "finetune/batches", epoch), len(batches))
    return [batches[index] for index in shuffled]


def evaluation_batches(
    rows: Encoded, device: torch.device, *, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[Rows, Inputs]]:
    """The rows of each batch of an evaluation, and its inputs: every row once, sorted by length.

    Process `rank` of `ranks` has batches rank, rank + ranks, ...
    """
    is_cpu = device.type == "cpu"
    size = CPU_BATCH if is_cpu else EVALUATION_BATCH
    for batch in _by_length(np.arange(len(rows)), rows.input_ids.lengths, size)[rank::ranks]:
        yield batch, rows.inputs(batch, is_tight=is_cpu)


def _by_length(rows: Rows, lengths: NDArray[np.int64], batch_size: int) -> list[Rows]:
    rows = rows[np.argsort(lengths[rows], kind="stable")]
    return [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]


def ids_with_masks(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a text, without [CLS] and [SEP]; each "[MASK]" in it becomes the special token.

    A mask may absorb the spaces before or after it.
    """
    before, after = tokenizer.normalization.mask_strips
    # From the first space of several on: a search that begins at each takes quadratic time.
    mask = r"(?<!\s)\s*" * before + re.escape(tokenizer.mask_token) + r"\s*" * after
    first, *rest = tokenizer.encode_batch(re.split(mask, text))
    return first + [i for part in rest for i in (tokenizer.mask_id, *part)]


def word_ids(
    words: Mapping[str, Sequence[str]], names: Sequence[str], tokenizer: Tokenizer
) -> list[list[int]]:
    """The ids of the words of each class, in the order of `names`; none without `words`.

    Spaces around a name do not count. Raises InputError for other classes, and for words that are
    not one token of the vocabulary.
    """
    if not words:
        return []
    classes = [name.strip() for name in names]
    wrong = [f"no words for {name!r}" for name in classes if name not in words]
    wrong += [f"the unknown class {name!r}" for name in words if name not in classes]
    if wrong:
        raise InputError(
            f"--label-words has {', '.join(wrong[:5])}; give words for each class of the training "
            "rows."
        )
    return [[_word_id(word, tokenizer) for word in words[name]] for name in classes]


def _word_id(word: str, tokenizer: Tokenizer) -> int:
    [ids] = tokenizer.encode_batch([tokenizer.after_space(word)])
    if len(ids) != 1 or ids == [tokenizer.unk_id]:
        pieces = " ".join(tokenizer.shown_tokens[i] for i in ids) or "nothing"
        raise InputError(
            f"--label-words has {word!r}, which the vocabulary has only as {pieces}; give a word "
            "that is one token."
        )
    return ids[0]
