"""A split: its shards, checked as they are read, and their masks, drawn anew."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.errors import ClozelineError, CorruptDataError, InputError
from clozeline.pipeline.common.paths import GivenPath, is_local, path_of, sizes_in
from clozeline.pipeline.common.ragged import Ragged
from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.manifest import TOKENIZER, Manifest, ShardEntry, read_manifest
from clozeline.pipeline.dataset.schema import B_IS_RANDOM, NO_PAIR, Examples
from clozeline.pipeline.dataset.shards import damaged_shard, read_shard
from clozeline.pipeline.examples.masks import MaskRules, OwnMasking, mask_examples, mask_keys
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer


class ShardSet:
    """One split of a finished data set.

    A shard is checked whenever it is read: size, checksum, footer, number of rows, ranges of
    values.

    Raises InputError if the folder is not a finished data set, its tokenizer is not the one that
    the manifest names, the split has no examples, or a shard file is missing or of another size;
    StoreError if the folder cannot be listed.
    """

    def __init__(self, folder: GivenPath, split: str) -> None:
        self.folder = path_of(folder)
        self.split = split
        self.manifest: Manifest = read_manifest(self.folder)
        self.entries = self.manifest.of_split(split)
        tokenizer = load_tokenizer(self.folder / TOKENIZER)
        self._check_tokenizer(tokenizer.digest)
        self.pad_id = tokenizer.pad_id
        self.max_seq_length = self.manifest.config.max_seq_length
        self._rules = MaskRules.of(self.manifest.config, tokenizer)
        self.has_documents = False  # whether `read` keeps the ids of the rows' documents
        self.has_failed = False  # a shard could not be read, maybe ahead of the batch that needs it
        self._check_files()

    @property
    def shard_rows(self) -> list[int]:
        """Examples in each shard."""
        return [entry.rows for entry in self.entries]

    def read(self, shard: int) -> Examples:
        """The rows of a shard, by its number; without ids of documents unless `has_documents`.

        Raises InputError for a missing shard, CorruptDataError for a damaged one or one that
        differs from the manifest, and StoreError for a store that cannot be read.
        """
        try:
            examples = self._read_shard(self.entries[shard])
        except ClozelineError:
            self.has_failed = True
            raise
        if self.has_documents:
            return examples
        # Zeros without memory: documents would be copied, row by row, for nothing.
        nothing = np.broadcast_to(np.uint64(0), len(examples))
        return replace(examples, document_a=nothing, document_b=nothing, piece_documents=None)

    def remasked(
        self,
        examples: Examples,
        shards: NDArray[np.int64],
        rows: NDArray[np.int64],
        epochs: NDArray[np.int64],
        *,
        masked_lm_prob: float | None = None,
        masking: OwnMasking | None = None,
    ) -> Examples:
        """The examples with masks drawn anew, which depend only on shard, row and epoch, [R] each.

        Rows are counted within their shards. At the shards' own rate, the masks of epoch 0 are
        those that they store. `masking` chooses the tokens instead of the shards' own scheme.
        """
        seed = self.manifest.config.seed
        keys = mask_keys(seed, split=self.split, shard=shards, epoch=epochs)
        config = config_at(self.manifest.config, masked_lm_prob)
        rules = replace(
            self._rules,
            masking=masking or self._rules.masking,
            masked_lm_prob=config.masked_lm_prob,
            max_predictions_per_seq=config.predictions,
        )
        return mask_examples(examples, keys=keys, rows=rows, rules=rules)

    def _read_shard(self, entry: ShardEntry) -> Examples:
        path = self.folder / entry.name
        is_here = is_local(path) and path.exists()  # read_shard reports missing ones
        if is_here and (wrong := self._wrong_size(entry, path.stat().st_size)):
            raise CorruptDataError(wrong)
        try:
            examples = read_shard(path, expected=entry.checksum)
        except InputError:
            raise
        except (ValueError, LookupError) as error:  # columns that do not match the schema
            raise damaged_shard(path, str(error)) from error
        if len(examples) != entry.rows:
            raise damaged_shard(path, f"{len(examples):,} rows, the manifest says {entry.rows:,}")
        if self.manifest.config.is_packed != (examples.piece_lengths is not None):
            raise damaged_shard(path, "its columns are not those of the manifest's --pairs")
        for what, highest, limit in self._limits(examples):
            if highest > limit:
                raise damaged_shard(path, f"{what} {highest:,}, the highest possible is {limit:,}")
        if wrong := _wrong_rows(examples):
            raise damaged_shard(path, wrong)
        return examples

    def _wrong_size(self, entry: ShardEntry, size: int | None) -> str | None:
        if size in (entry.bytes, None):
            return None
        return (
            f"{self.folder / entry.name} has {size:,} bytes, the manifest says {entry.bytes:,}; "
            "build the shards again with `clozeline shards --overwrite`."
        )

    def _limits(self, examples: Examples) -> list[tuple[str, int, int]]:
        """(what, highest found, limit); beyond a limit a GPU fails without naming the shard."""
        config, last_id = self.manifest.config, self.manifest.vocab_size - 1
        last_position = config.max_seq_length - 1
        return [
            ("row length", _highest(examples.input_ids.lengths), config.max_seq_length),
            ("masks in a row", _highest(examples.masked_lm_labels.lengths), config.predictions),
            ("token id", _highest(examples.input_ids.values), last_id),
            ("label", _highest(examples.masked_lm_labels.values), last_id),
            ("masked position", _highest(examples.masked_lm_positions.values), last_position),
        ]

    def _check_tokenizer(self, digest: str) -> None:
        recorded = self.manifest.tokenizer_digest
        if digest != recorded:
            raise InputError(
                f"{self.folder / TOKENIZER} is not the tokenizer of these shards (its digest is "
                f"{digest[:12]}, the manifest says {recorded[:12]}); restore the right one."
            )

    def _check_files(self) -> None:
        if not sum(self.shard_rows):
            raise InputError(
                f"{self.folder} has no {self.split} examples; build shards from more text, or "
                "with another `--validation`."
            )
        sizes = sizes_in(self.folder)
        missing = [entry.name for entry in self.entries if entry.name not in sizes]
        if missing:
            raise InputError(
                f"{self.folder / missing[0]} is missing ({len(missing)} of {len(self.entries)} "
                f"{self.split} shards are); build the shards again with `clozeline shards`."
            )
        for entry in self.entries:
            if wrong := self._wrong_size(entry, sizes.get(entry.name)):
                raise CorruptDataError(wrong)


def config_at(config: DataConfig, masked_lm_prob: float | None) -> DataConfig:
    """A data config with another masking rate, and the default limit of masks for it.

    At its own rate it keeps its own limit, too.
    """
    if masked_lm_prob in (None, config.masked_lm_prob):
        return config
    return replace(config, masked_lm_prob=masked_lm_prob, max_predictions_per_seq=None)


def blank_examples(rows: int, pad_id: int, *, packed: bool) -> Examples:
    """Rows after the last one of a split, with `length_a` 0, which no row of a shard has.

    They have one token, [PAD]: attention over none is NaN.
    """
    ids = Ragged(np.full(rows, pad_id, np.uint32), np.arange(rows + 1))
    nothing = np.zeros(rows + 1, np.int64)
    zeros = np.zeros(rows, np.uint64)
    return Examples(
        input_ids=ids,
        masked_lm_positions=Ragged(np.zeros(0, np.uint16), nothing),
        masked_lm_labels=Ragged(np.zeros(0, np.uint32), nothing),
        length_a=np.zeros(rows, np.uint16),
        next_sentence_label=np.full(rows, NO_PAIR, np.int8),
        document_a=zeros,
        document_b=zeros,
        piece_lengths=Ragged(np.ones(rows, np.uint16), ids.offsets) if packed else None,
    )


def _wrong_rows(examples: Examples) -> str | None:
    """What is wrong with the rows, if anything; their values have passed `_limits` already."""
    lengths, labels = examples.input_ids.lengths, examples.next_sentence_label
    positions = examples.masked_lm_positions
    if ((examples.length_a < 2) | (examples.length_a > lengths)).any():
        return "a length_a that does not fit its row"
    if ((labels < NO_PAIR) | (labels > B_IS_RANDOM)).any():
        return "a next_sentence_label that is not -1, 0 or 1"
    if (positions.lengths != examples.masked_lm_labels.lengths).any():
        return "a row with more or fewer labels than masked positions"
    is_rising = positions.values[1:] > positions.values[:-1]
    starts = positions.offsets[1:-1]
    is_rising[starts[(starts > 0) & (starts < len(positions.values))] - 1] = True
    last = positions.offsets[1:][positions.lengths > 0] - 1
    is_inside = positions.values[last] < lengths[positions.lengths > 0]
    if not (is_rising.all() and is_inside.all()):
        return "masked positions that are not ascending, or beyond their row"
    pieces = examples.piece_lengths
    if pieces and not (pieces.values.all() and np.array_equal(pieces.sums, lengths)):  # none empty
        return "pieces that do not make up their row"
    return None


def _highest(values: NDArray[Any]) -> int:
    return int(values.max(initial=0))
