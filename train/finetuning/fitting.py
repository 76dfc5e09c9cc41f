"""One fine-tuned model: the search for its learning rate and epochs, then the final training.

rows, labels  ->  model, the chosen plan, its results on held-out training rows
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

from clozeline.model.heads import BertForClassification, load_encoder
from clozeline.pipeline.common.errors import DivergedError
from clozeline.pipeline.common.progress_bar import ProgressBar
from clozeline.train.artifacts.pretrained import Pretrained
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.selection import (
    NOT_HELD_OUT,
    SEARCH_ROWS,
    HeldOut,
    Selection,
    candidate_rates,
    final_plan,
    final_split,
    held_out_result,
    select_plan,
)
from clozeline.train.finetuning.training import (
    Labels,
    Logits,
    Plan,
    predict_logits,
    train_classifier,
)
from clozeline.train.labelled.encoding import EVALUATION_BATCH, Encoded
from clozeline.train.labelled.rows import Rows


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A trained classifier, and what was chosen for it."""

    model: BertForClassification
    selection: Selection


@dataclass(frozen=True, kw_only=True)
class Fitter:
    """Fine-tunes one architecture, from pretrained or from random weights.

    Float labels are the targets of a regression, for a model with one output.
    """

    start: Pretrained
    is_pretrained: bool
    classes: int
    config: FinetuneConfig
    device: torch.device

    def fit(
        self,
        rows: Encoded,
        labels: Labels,
        *,
        seed: int,
        title: str,
        chosen: Selection | None = None,
        needs_held_out: bool = True,
    ) -> Fitted:
        """Train on all rows; `title` labels the progress bar.

        With `chosen`, the selection of another seed, no learning rate is searched. Where nothing
        is searched, results on held-out rows are measured only if `needs_held_out`.
        """
        with _progress(f"{title}, search") as progress:
            held_out_logits = partial(self._held_out_logits, rows, labels, seed, progress)
            if chosen is None:
                rates = candidate_rates(self.start.model)
                chosen = select_plan(
                    *(held_out_logits, labels, self.config, rates),
                    seed=seed,
                    needs_held_out=needs_held_out,
                )
            elif needs_held_out and len(labels) <= SEARCH_ROWS:
                result = held_out_result(held_out_logits, labels, chosen.plan, seed=seed)
                chosen = replace(chosen, held_out=result)
            else:
                chosen = replace(chosen, held_out=NOT_HELD_OUT)
        plan = final_plan(chosen.plan, len(labels), self.config)
        with _progress(title) as progress:
            return self._train_finally(rows, labels, replace(chosen, plan=plan), seed, progress)

    def _train_finally(
        self, rows: Encoded, labels: Labels, chosen: Selection, seed: int, progress: tqdm
    ) -> Fitted:
        """Run the final training; if rows are held out of it, score the model on them."""
        kept, held = final_split(labels, seed=seed)
        model = self._trained(rows, labels, seed, progress, kept, chosen.plan)
        self._check_finite(model, rows, chosen.plan)
        if len(held):
            result = HeldOut.of(self._logits(model, rows.take(held)), labels[held])
            chosen = replace(chosen, held_out=result)
        return Fitted(model=model, selection=chosen)

    def _check_finite(self, model: BertForClassification, rows: Encoded, plan: Plan) -> None:
        """Raises DivergedError if the weights, or logits of the first rows, are not finite."""
        logits = self._logits(model, rows.take(np.arange(min(len(rows), EVALUATION_BATCH))))
        is_finite = all(weight.isfinite().all() for weight in model.state_dict().values())
        if not (is_finite and np.isfinite(logits).all()):
            raise DivergedError(
                f"fine-tuning diverged at a learning rate of {plan.learning_rate:g}: its weights "
                "are not finite, so there is no classifier. Give a smaller --learning-rate."
            )

    def _held_out_logits(
        self,
        rows: Encoded,
        labels: Labels,
        seed: int,
        progress: tqdm,
        train: Rows,
        held: Rows,
        plan: Plan,
    ) -> Logits:
        model = self._trained(rows, labels, seed, progress, train, plan)
        return self._logits(model, rows.take(held))

    def _trained(
        self, rows: Encoded, labels: Labels, seed: int, progress: tqdm, train: Rows, plan: Plan
    ) -> BertForClassification:
        model = self.new_model(seed)
        train_classifier(
            *(model, rows.take(train), labels[train], self.config, plan),
            seed=seed,
            progress=progress,
        )
        return model

    def _logits(self, model: BertForClassification, rows: Encoded) -> Logits:
        return predict_logits(model, rows, precision=self.config.precision)

    def new_model(self, seed: int) -> BertForClassification:
        """An untrained classifier; what is not pretrained is drawn from the seed."""
        start = self.start
        model = BertForClassification(start.model, self.classes, pooling=start.pooling, seed=seed)
        if self.is_pretrained:
            load_encoder(model, start.weights)
        return model.to(self.device)


def _progress(title: str) -> tqdm:
    return ProgressBar(desc=title, unit="step", mininterval=0.5)
