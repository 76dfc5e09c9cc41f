"""What a fine-tuning needs: a pretrained model, labelled tables and a config, all read.

read_job(RUN, "train.csv", "test.csv", [], config)  ->  FinetuneJob(start, train, {"test": ...}, ..)
job.train.rows, job.train.labels                    ->  token ids and classes of the training rows
job.digests   ->  {"epochs": "auto", ..., "pretrained": "5f2c..", "training rows": "ab12.."}
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clozeline.pipeline.common.errors import InputError
from clozeline.train.artifacts.pretrained import Pretrained, read_pretrained
from clozeline.train.artifacts.run import with_dropout
from clozeline.train.finetuning.config import COLUMNS, FinetuneConfig
from clozeline.train.labelled.encoding import Encoded, Encoder, word_ids
from clozeline.train.labelled.rows import (
    Labelled,
    Labels,
    Rows,
    balanced_order,
    class_ids,
    class_names,
    hold_out,
    read_labelled,
    sample,
)

TEST = "test"  # the name of the test rows that decide the score


@dataclass(frozen=True)
class Table:
    """Labelled rows as the compared models read them."""

    read: Labelled
    labels: Labels
    encoder: Encoder

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def rows(self) -> Encoded:
        """Token ids, for a classifier."""
        return self.encoder.encode(self.read.texts)

    @cached_property
    def truncated(self) -> list[str]:
        """The part of each text that is in `rows`, for bag-of-words."""
        return replace(self.read, texts=self.encoder.shortened(self.read.texts)).joined()


@dataclass(frozen=True, kw_only=True)
class FinetuneJob:
    """Everything that the results depend on."""

    start: Pretrained
    train: Table
    tests: dict[str, Table]  # by name: TEST, and others by their source
    names: tuple[str, ...]  # of the classes; none: a regression
    config: FinetuneConfig
    label_ids: list[list[int]]  # the words from which each class starts, if any

    def subset(self, size: int, *, seed: int) -> Rows:
        """The training rows of a model, int64 [size]: balanced, and nested in larger subsets."""
        if not self.names:
            return np.arange(size)
        # All rows have one order, so that all seeds hold the same ones out.
        seed = self.config.seed if size == len(self.train) else seed
        return balanced_order(self.train.labels, seed=seed)[:size]

    @cached_property
    def digests(self) -> dict[str, Any]:
        """The config, and digests of weights and rows; compared when the command is rerun."""
        trained, start = self.start.trained_positions, self.start
        return {
            **asdict(self.config),
            "max_seq_length": start.max_seq_length,
            "truncate": start.truncate,
            "pooling": start.pooling,
            "pretrained": values_digest(start.weights),
            **({} if trained is None else {"trained_positions": trained}),
            "tokenizer": start.tokenizer.digest,
            "training rows": self.train.read.digest(),
            "tests": list(self.tests),  # so that leaving one out is another job
            **{f"{name} rows": table.read.digest() for name, table in self.tests.items()},
        }


def read_job(
    run: Path,
    train_source: str,
    test_source: str | None,
    also_test: Iterable[str],
    config: FinetuneConfig,
    *,
    is_regression: bool = False,
) -> FinetuneJob:
    """Read the model and all rows. Raises InputError for whatever the user can fix."""
    also_test = list(also_test)
    if TEST in also_test:
        raise InputError(f"--also-test {TEST} has the name of the --test rows; give ./{TEST}.")
    start = load_start(run, config)
    names_of_columns = {name: getattr(config, name) for name in COLUMNS}
    columns: dict[str, Any] = {**names_of_columns, "is_regression": is_regression}
    train = read_labelled(train_source, **columns)
    names = () if is_regression else class_names(train)
    if test_source is None:
        train, test = hold_out(train, seed=config.seed)
    else:
        test = read_labelled(test_source, **columns, is_test=True)
    if config.max_examples is not None:
        train = sample(train, config.max_examples, seed=config.seed)
        names = names and class_names(train)
    *_, largest = config.sizes(len(train))
    if largest > len(train):
        raise InputError(
            f"--label-efficiency asks for {largest:,} rows, but there are {len(train):,} training "
            "rows; give fewer."
        )
    others = {source: read_labelled(source, **columns, is_test=True) for source in also_test}
    read = {"": train, TEST: test, **others}
    if is_regression:  # float32 would make 2,000,000,001 even
        labels: dict[str, Labels] = {name: np.array(rows.labels) for name, rows in read.items()}
        deviation = labels[""].std() or 1.0  # standardized: no correlation changes
        labels[""] = ((labels[""] - labels[""].mean()) / deviation).astype(np.float32)
    else:
        labels = {name: class_ids(rows, names) for name, rows in read.items()}
    encoder = Encoder(start.tokenizer, start.max_seq_length, config.prompt, start.truncate)
    tables = {name: Table(rows, labels[name], encoder) for name, rows in read.items()}
    return FinetuneJob(
        start=start,
        train=tables.pop(""),
        tests=tables,
        names=names,
        config=config,
        label_ids=word_ids(config.words_of_classes, names, start.tokenizer),
    )


def load_start(run: Path, config: FinetuneConfig) -> Pretrained:
    """The pretrained model, with the dropout, maximum length and pooling of the config."""
    pretrained = read_pretrained(run, seed=config.seed)
    model = with_dropout(pretrained.model, config.dropout)
    max_seq_length = config.max_seq_length or pretrained.max_seq_length
    if max_seq_length > model.max_position_embeddings:
        raise InputError(
            f"--max-seq-length is {max_seq_length}, but the model of {run} has only "
            f"{model.max_position_embeddings} positions; give at most that."
        )
    trained = pretrained.trained_positions
    if config.prompt and "mlm_head" in pretrained.absent:
        raise InputError(f"{run} has no masked-LM head, which a prompt needs; leave --prompt out.")
    return replace(
        pretrained,
        model=model,
        max_seq_length=max_seq_length,
        truncate=config.truncate or pretrained.truncate,
        pooling="mask" if config.prompt else config.pooling or pretrained.pooling,
        trained_positions=None if trained is None or trained >= max_seq_length else trained,
    )


def values_digest(weights: Mapping[str, Tensor]) -> str:
    """sha256, hex, of all weights by name."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(name.encode())
        digest.update(value.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
