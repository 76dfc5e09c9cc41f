"""Trains and tests the compared models on the same rows, truncated at the same token.

    pretrained       fine-tuned from the pretrained weights
    from_scratch     the same model and the same search, from random weights
    bag_of_words     TF-IDF and logistic regression

Smaller training sets are balanced and nested in larger ones; the first seed's search decides the
learning rate for all seeds.
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor
from tqdm import tqdm

from clozeline.model.heads import BertForClassification
from clozeline.train.artifacts.pretrained import Pretrained
from clozeline.train.engine.distributed import World
from clozeline.train.finetuning.cells import Cell, CellKey, CellStore, Start
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.fitting import Fitted, Fitter
from clozeline.train.finetuning.training import Logits, predict_logits
from clozeline.train.labelled.baseline import fit_bag_of_words, has_sklearn
from clozeline.train.labelled.encoding import Encoder
from clozeline.train.labelled.rows import Labelled, Rows, Texts, balanced_order, class_ids
from clozeline.train.labelled.scores import Scores

TEST = "test"

Weights = dict[str, Tensor]


class ComparedModels:
    """Trains the compared models on the same rows; tests them on named sets ("test" is one)."""

    def __init__(
        self,
        start: Pretrained,
        train: Labelled,
        tests: Mapping[str, Labelled],
        names: tuple[str, ...],
        config: FinetuneConfig,
        device: torch.device,
    ) -> None:
        self.names = names
        self._config, self._train, self._tests = config, train, tests
        self._encoder = Encoder(start.tokenizer, max_seq_length=start.max_seq_length)
        self.rows, self.labels = self._encoder.encode(train.texts), class_ids(train, names)
        self.test_rows = {name: self._encoder.encode(test.texts) for name, test in tests.items()}
        self.test_labels = {name: class_ids(test, names) for name, test in tests.items()}
        self._fitters = {
            is_pretrained: Fitter(
                start=start,
                is_pretrained=is_pretrained,
                classes=len(names),
                config=config,
                device=device,
            )
            for is_pretrained in (True, False)
        }

    def keys(self) -> list[CellKey]:
        """Every model to train, in order; candidates for the classifier come last."""
        config, total = self._config, len(self.labels)
        starts: list[Start] = ["bag_of_words"] if config.baseline and has_sklearn() else []
        starts += ["from_scratch"] if config.has_from_scratch else []
        return [
            CellKey(start=start, examples=size, seed=seed)
            for size in config.sizes(total)
            for start in (*starts, "pretrained")
            for seed in config.all_seeds
            # On all rows bag-of-words does not depend on the seed.
            if seed == config.seed or size < total or start != "bag_of_words"
        ]

    def logits(self, model: BertForClassification, name: str) -> Logits:
        """The model's logits for the test set of this name, [N, C]."""
        return predict_logits(model, self.test_rows[name], precision=self._config.precision)

    def model_of(self, weights: Weights) -> BertForClassification:
        """The classifier with these weights."""
        model = self._fitters[True].new_model(self._config.seed)
        model.load_state_dict(weights)
        return model

    def is_candidate(self, key: CellKey) -> bool:
        """Whether the model may become the classifier."""
        return key.start == "pretrained" and key.examples == len(self.labels)

    def train(self, key: CellKey, first: Cell | None) -> tuple[Cell, Fitted | None]:
        """Train and test one model; `first` is the first seed's cell, if this is another seed."""
        rows = self._subset(key)
        if key.start == "bag_of_words":
            return self._bag_of_words(key, rows), None
        fitter = self._fitters[key.start == "pretrained"]
        fitted = fitter.fit(
            self.rows.take(rows),
            self.labels[rows],
            seed=key.seed,
            title=key.title,
            chosen=first.selection if first else None,
            needs_held_out=self.is_candidate(key),
        )
        scores = {
            name: self._scores(name, self.logits(fitted.model, name).argmax(1))
            for name in self.test_rows
        }
        return self._cell(key, scores, fitted), fitted

    def _bag_of_words(self, key: CellKey, rows: Rows) -> Cell:
        texts = self._truncated_train.take(rows)
        predict = fit_bag_of_words(
            texts.joined(),
            self.labels[rows],
            is_balanced=self._config.class_weights == "balanced",
            source=self._train.source,
        )
        scores = {
            name: self._scores(name, predict(texts.joined()))
            for name, texts in self._truncated_tests.items()
        }
        return self._cell(key, scores, None)

    def _scores(self, name: str, predicted: Rows) -> Scores:
        return Scores.of(self.names, self.test_labels[name], predicted)

    def _cell(self, key: CellKey, scores: dict[str, Scores], fitted: Fitted | None) -> Cell:
        also = {name: value for name, value in scores.items() if name != TEST}
        selection = fitted.selection if fitted else None
        return Cell(key=key, scores=scores[TEST], also=also, selection=selection)

    def _subset(self, key: CellKey) -> Rows:
        order = balanced_order(self.labels, seed=key.seed)
        return order[: key.examples]

    @cached_property
    def _truncated_train(self) -> Texts:
        return self._encoder.truncate(self._train.texts)

    @cached_property
    def _truncated_tests(self) -> dict[str, Texts]:
        return {name: self._encoder.truncate(test.texts) for name, test in self._tests.items()}


def train_all(
    compared: ComparedModels, store: CellStore, world: World
) -> tuple[list[Cell], Cell, Weights | None]:
    """Train what is not stored yet. Returns all results, the best candidate's, and its weights.

    The best candidate has the lowest loss on held-out training rows; its weights are None if
    they are in the store. With several processes, each trains some of the models and reads the
    others from the store.
    """
    keys = compared.keys()
    is_resumable = sum(key.start != "bag_of_words" for key in keys) > 1 or world.size > 1
    cells: dict[CellKey, Cell] = {}
    last: tuple[CellKey, Weights] | None = None  # kept in memory
    for part in _parts(keys) if world.size > 1 else [keys]:
        for key in share_of(part, world):
            is_candidate = compared.is_candidate(key)
            cell = store.read(key, with_weights=is_candidate)
            if cell is None:
                cell, fitted = compared.train(key, cells.get(replace(key, seed=keys[0].seed)))
                weights = _weights(fitted) if fitted and is_candidate else None
                last = (key, weights) if weights else None
                if is_resumable and (key != keys[-1] or world.size > 1):
                    store.write(cell, weights)
                tqdm.write(cell.line(), file=sys.stderr)
            cells[key] = cell
        world.wait()
        cells |= {key: store.read_other(key) for key in part if key not in cells}
    best = min((cells[key] for key in keys if compared.is_candidate(key)), key=_held_out_loss)
    kept = last[1] if last and last[0] == best.key else None
    return [cells[key] for key in keys], best, kept


def _parts(keys: list[CellKey]) -> list[list[CellKey]]:
    """The first seed's models, then the others, which need the first seed's selections."""
    first = keys[0].seed
    return [[k for k in keys if k.seed == first], [k for k in keys if k.seed != first]]


def share_of(keys: list[CellKey], world: World) -> list[CellKey]:
    """This process's part of the models: the largest are dealt first and trained last."""
    return keys[::-1][world.rank :: world.size][::-1]


def _weights(fitted: Fitted) -> Weights:
    return {name: value.cpu().contiguous() for name, value in fitted.model.state_dict().items()}


def _held_out_loss(cell: Cell) -> float:
    assert cell.selection is not None  # candidates are fine-tuned
    return cell.selection.held_out.loss
