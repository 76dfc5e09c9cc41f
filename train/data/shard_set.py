"""The shards of a split, checked when they are read, and masks drawn anew."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.common.checksums import file_sha256
from pipeline.common.errors import CorruptDataError, InputError
from pipeline.common.paths import AnyPath, path_of
from pipeline.common.ragged import Ragged, offsets_of
from pipeline.dataset.manifest import TOKENIZER, Manifest, ShardEntry, read_manifest
from pipeline.dataset.schema import B_IS_RANDOM, NO_PAIR, Examples
from pipeline.dataset.shards import read_shard
from pipeline.examples.masks import MaskRules, mask_examples, mask_keys
from pipeline.tokenization.tokenizer import load_tokenizer


class ShardSet:
    """One split of a finished data set.

    A shard is checked whenever it is opened: size, checksum, footer, number of rows, ranges of
    values; with `check_shards` also its sha256, the first time. With `skip_bad_shards` all shards
    are opened at once, and bad ones count as empty: see `skipped`.

    Raises InputError if the folder is not a finished data set, its tokenizer is not the one that
    the manifest names, the split has no examples, or a shard file is missing.
    """

    def __init__(
        self,
        folder: AnyPath | str,
        split: str,
        *,
        check_shards: bool = False,
        skip_bad_shards: bool = False,
    ) -> None:
        self.folder = path_of(folder)
        self.split = split
        self.manifest: Manifest = read_manifest(self.folder)
        self.entries = self.manifest.of_split(split)
        tokenizer = load_tokenizer(self.folder / TOKENIZER)
        self._check_tokenizer(tokenizer.digest)
        self.pad_id = tokenizer.pad_id
        self.max_seq_length = self.manifest.config.max_seq_length
        self.max_predictions = self.manifest.config.predictions
        self._rules = MaskRules.of(self.manifest.config, tokenizer)
        self._unchecked = {entry.name for entry in self.entries} if check_shards else set()
        #: The shards that `skip_bad_shards` skips: what is wrong with each, by name.
        self.skipped: dict[str, str] = self._bad_shards() if skip_bad_shards else {}
        self._check_files()

    @property
    def shard_rows(self) -> list[int]:
        """Examples in each shard, 0 in a skipped one."""
        return [0 if entry.name in self.skipped else entry.rows for entry in self.entries]

    @property
    def lost_rows(self) -> int:
        """Examples in the skipped shards, according to the manifest."""
        return sum(entry.rows for entry in self.entries if entry.name in self.skipped)

    def _bad_shards(self) -> dict[str, str]:
        """Reads every shard, so that the number of examples is known before the first batch."""
        bad = {}
        for entry in self.entries:
            try:
                self._read_shard(entry)
            except InputError as error:
                bad[entry.name] = str(error)
        return bad

    def read(self, shard: int) -> Examples:
        """The rows of a shard, by its number.

        Raises InputError for a missing shard, and CorruptDataError for a damaged one or one that
        differs from the manifest.
        """
        return self._read_shard(self.entries[shard])

    def remasked(
        self,
        examples: Examples,
        shards: NDArray[np.int64],
        rows: NDArray[np.int64],
        epochs: NDArray[np.int64],
    ) -> Examples:
        """The examples with masks drawn anew, which depend only on shard, row and epoch, [R] each.

        Rows are counted within their shards.
        """
        seed = self.manifest.config.seed
        keys = mask_keys(seed, split=self.split, shard=shards, epoch=epochs)
        return mask_examples(examples, keys=keys, rows=rows, rules=self._rules)

    def _read_shard(self, entry: ShardEntry) -> Examples:
        path = self.folder / entry.name
        if path.exists() and path.stat().st_size != entry.bytes:  # read_shard reports missing ones
            raise CorruptDataError(
                f"{path} has {path.stat().st_size:,} bytes, the manifest says {entry.bytes:,}; "
                "build the shards again with `clozeline shards --overwrite`."
            )
        self._check_bytes(path, entry)
        try:
            examples = read_shard(path, expected=entry.checksum)
        except InputError:
            raise
        except (ValueError, LookupError) as error:  # columns that do not match the schema
            raise self._damaged(path, str(error)) from error
        if len(examples) != entry.rows:
            raise self._damaged(path, f"{len(examples):,} rows, the manifest says {entry.rows:,}")
        if self.manifest.config.is_packed != (examples.piece_lengths is not None):
            raise self._damaged(path, "its columns are not those of the manifest's --pairs")
        columns = [x for x in examples.columns().values() if isinstance(x, Ragged)]
        if not all(map(_has_valid_offsets, columns)):
            raise self._damaged(path, "rows overlap or lie beyond the file")
        for what, highest, limit in self._limits(examples):
            if highest > limit:
                raise self._damaged(path, f"{what} {highest:,}, the highest possible is {limit:,}")
        if wrong := _wrong_rows(examples):
            raise self._damaged(path, wrong)
        return examples

    def _check_bytes(self, path: AnyPath, entry: ShardEntry) -> None:
        """Check the sha256 once per shard; `read_shard` reports missing ones."""
        if entry.name in self._unchecked and path.exists():
            if file_sha256(path) != entry.sha256:
                raise self._damaged(path, "its sha256 is not the manifest's")
            self._unchecked.remove(entry.name)

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

    def _damaged(self, path: AnyPath, how: str) -> CorruptDataError:
        return CorruptDataError(
            f"{path} is damaged ({how}); `clozeline verify {self.folder}` lists damaged shards."
        )

    def _check_tokenizer(self, digest: str) -> None:
        recorded = self.manifest.tokenizer_digest
        if digest != recorded:
            raise InputError(
                f"{self.folder / TOKENIZER} is not the tokenizer of these shards (its digest is "
                f"{digest[:12]}, the manifest says {recorded[:12]}); restore the right one."
            )

    def _check_files(self) -> None:
        if self.skipped and not sum(self.shard_rows):
            raise InputError(
                f"{self.folder}: all {self.split} shards are bad; build them again with "
                "`clozeline shards --overwrite`."
            )
        if not sum(self.shard_rows):
            raise InputError(
                f"{self.folder} has no {self.split} examples; build shards from more text, or "
                "with another `--validation`."
            )
        if self.skipped:
            return
        present = {path.name for path in self.folder.iterdir()}
        missing = [entry.name for entry in self.entries if entry.name not in present]
        if missing:
            raise InputError(
                f"{self.folder / missing[0]} is missing ({len(missing)} of {len(self.entries)} "
                f"{self.split} shards are); build the shards again with `clozeline shards`."
            )


def _has_valid_offsets(column: Ragged) -> bool:
    return bool((column.lengths >= 0).all()) and column.offsets[-1] == len(column.values)


def _wrong_rows(examples: Examples) -> str | None:
    """What no row may have, if one has it; values are below their limits already."""
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
    if examples.piece_lengths is not None and not _fill_rows(examples.piece_lengths, lengths):
        return "pieces that do not make up their row"
    return None


def _fill_rows(pieces: Ragged, lengths: NDArray[np.int64]) -> bool:
    """Whether the pieces of each row, none of them empty, are together as long as the row."""
    before = offsets_of(pieces.values)
    return bool(pieces.values.all()) and np.array_equal(np.diff(before[pieces.offsets]), lengths)


def _highest(values: NDArray[Any]) -> int:
    return int(values.max(initial=0))
