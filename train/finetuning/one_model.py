"""One fine-tuned model: the search for its learning rate and epochs, then the final training.

rows, labels  ->  model, the chosen plan, its results on held-out training rows
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from clozeline.model.heads import BertForClassification, load_encoder
from clozeline.pipeline.common.errors import DivergedError
from clozeline.pipeline.common.progress_bar import ProgressBar, in_command
from clozeline.train.artifacts.pretrained import Pretrained
from clozeline.train.engine.distributed import World
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.finetuning.hyperparameters import (
    NOT_HELD_OUT,
    SEARCH_ROWS,
    HeldOut,
    Selection,
    candidate_rates,
    final_plan,
    final_split,
    folds_line,
    given_plan,
    held_out_result,
    select_plan,
)
from clozeline.train.finetuning.training_loop import (
    Labels,
    Logits,
    Plan,
    predict_logits,
    train_classifier,
)
from clozeline.train.labelled.encoding import EVALUATION_BATCH, Encoded
from clozeline.train.labelled.rows import Rows

MOST_CENTRED_ON = 1_024  # training rows whose mean logits classes with words start from
DECODER, EMBEDDINGS = "mlm_head.decoder.weight", "encoder.embeddings.word_embeddings.weight"


@dataclass(frozen=True, kw_only=True)
class ModelTrainer:
    """Fine-tunes one architecture; float labels are targets of a regression, with one output."""

    start: Pretrained
    is_pretrained: bool
    outputs: int
    mask_position: int
    label_ids: Sequence[list[int]]  # the words of each class, from which classes start
    config: FinetuneConfig
    world: World  # of the processes that train it together

    def train(
        self,
        rows: Encoded,
        labels: Labels,
        *,
        seed: int,
        title: str,
        chosen: Selection | None,
        is_candidate: bool,
    ) -> tuple[BertForClassification, Selection]:
        """Train on all rows; returns the model and what was chosen. `title` labels the progress.

        With `chosen`, the selection of another seed, nothing is searched. Of several seeds, a
        candidate for the classifier has results on held-out rows, the same for all seeds.
        """

        def held_out_logits(train: Rows, held: Rows, plan: Plan) -> Logits:
            model = self._trained(rows.take(train), labels[train], plan, seed, progress)
            return self._logits(model, rows.take(held))

        def held_out_of(plan: Plan) -> HeldOut:
            found = held_out_result(held_out_logits, labels, plan, seed=self.config.seed)
            return self.world.broadcast_from_main(lambda: found)  # all processes choose the same

        folds = folds_line(len(labels))
        if chosen is not None:
            chosen = replace(chosen, held_out=NOT_HELD_OUT)
        elif plan := given_plan(self.config, len(labels)):
            chosen = Selection(plan=plan, held_out=NOT_HELD_OUT, tried=())
        else:
            with self._progress(f"{title}, search on {folds}") as progress:
                rates = candidate_rates(self.start.model)
                chosen = select_plan(held_out_of, labels, self.config, rates)
        is_compared = is_candidate and self.config.seeds > 1 and len(labels) <= SEARCH_ROWS
        if is_compared and not chosen.held_out.rows:
            with self._progress(f"{title}, seeds compared on {folds}") as progress:
                chosen = replace(chosen, held_out=held_out_of(chosen.plan))
        chosen = replace(chosen, plan=final_plan(chosen.plan, len(labels), self.config))
        with self._progress(title) as progress:
            return self._train_finally(rows, labels, chosen, seed, progress)

    def test_logits(
        self, model: BertForClassification, tests: Mapping[str, Encoded], *, title: str
    ) -> dict[str, Logits]:
        """The logits of each test set, [N, C], by its name: those of a user of the classifier.

        `clozeline predict`, a server and exported models compute in float32.
        """
        with self._progress(f"{title}, test rows", unit="row") as progress:
            found = partial(predict_logits, model, world=self.world, progress=progress)
            return {name: found(rows) for name, rows in tests.items()}

    def _train_finally(
        self, rows: Encoded, labels: Labels, chosen: Selection, seed: int, progress: tqdm
    ) -> tuple[BertForClassification, Selection]:
        """Run the final training; if rows are held out of it, score the model on them."""
        kept, held = final_split(labels, seed=self.config.seed)
        model = self._trained(rows.take(kept), labels[kept], chosen.plan, seed, progress)
        self._check_finite(model, rows, chosen.plan)
        if len(held):
            result = HeldOut.of(self._logits(model, rows.take(held)), labels[held])
            chosen = replace(chosen, held_out=result)
        return model, chosen

    def _check_finite(self, model: BertForClassification, rows: Encoded, plan: Plan) -> None:
        """Raises DivergedError if the weights, or logits of the first rows, are not finite."""
        logits = self._logits(model, rows.take(np.arange(min(len(rows), EVALUATION_BATCH))))
        weights = model.state_dict().values()
        is_finite = np.isfinite(logits).all() and all(w.isfinite().all() for w in weights)

        def check() -> None:
            if not is_finite:
                raise DivergedError(
                    f"fine-tuning diverged at a learning rate of {plan.learning_rate:g}: its "
                    "weights are not finite, so there is no classifier. Give a smaller "
                    "--learning-rate."
                )

        self.world.broadcast_from_main(check)

    def _trained(
        self, rows: Encoded, labels: Labels, plan: Plan, seed: int, progress: tqdm
    ) -> BertForClassification:
        model = self.new_model(seed)
        if self.label_ids:  # no class is ahead before the training, however frequent its words are
            some = np.linspace(0, len(rows) - 1, min(len(rows), MOST_CENTRED_ON)).astype(np.int64)
            ahead = torch.from_numpy(self._logits(model, rows.take(some)).mean(0))
            model.classifier.bias.data -= ahead.to(self.world.device)
        train_classifier(
            model,
            rows,
            labels,
            self.config,
            plan,
            seed=seed,
            progress=progress,
            world=self.world,
        )
        return model

    def _logits(self, model: BertForClassification, rows: Encoded) -> Logits:
        return predict_logits(model, rows, precision=self.config.precision, world=self.world)

    def _progress(self, title: str, *, unit: str = "step") -> tqdm:
        """Shown by one of the processes."""
        is_shown = self.world.is_main and in_command()
        return ProgressBar(desc=title, unit=unit, mininterval=0.5, disable=not is_shown)

    def new_model(self, seed: int) -> BertForClassification:
        """An untrained classifier; what is not pretrained is drawn from the seed."""
        start = self.start
        model = BertForClassification(
            start.model,
            self.outputs,
            pooling=start.pooling,
            mask_position=self.mask_position,
            seed=seed,
        )
        if self.is_pretrained:
            load_encoder(model, start.continued_weights)
            start_at_words(model, start.weights, self.label_ids)
        return model.to(self.world.device)


@torch.no_grad()
def start_at_words(
    model: BertForClassification, weights: Mapping[str, Tensor], label_ids: Sequence[list[int]]
) -> None:
    """Let the weights of each class be the mean of the decoder's rows for its words, if any."""
    table = weights.get(DECODER, weights[EMBEDDINGS])
    for label, ids in enumerate(label_ids):
        model.classifier.weight[label] = table[ids].mean(0)
