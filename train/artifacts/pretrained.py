"""The pretrained model in a run, a Hugging Face folder, or a classifier that was built from one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torch import Tensor

from clozeline.model.config import BertConfig, Pooling
from clozeline.model.heads import BertForPretraining
from clozeline.model.huggingface.convert import part_of
from clozeline.model.huggingface.weight_files import has_weights
from clozeline.model.positions import TABLE, continued_positions
from clozeline.pipeline.common.config_checks import takes_keywords
from clozeline.pipeline.common.folders import kind_of, wrong_folder
from clozeline.pipeline.common.paths import GivenPath
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.train.artifacts.classifier_folder import read_model, unreadable_model
from clozeline.train.artifacts.huggingface import load_model, longest_text, side_cut
from clozeline.train.artifacts.partial_folder import restore_folder
from clozeline.train.artifacts.run import read_run_and_weights, trained_positions
from clozeline.train.config import Truncate
from clozeline.train.store.local_folder import local_folder

#: The folders that have a model, as a message calls them.
MODELS = {"run": "a run", "classifier": "a classifier", "Hugging Face": "a Hugging Face folder"}
PRETRAINED = ("run", "Hugging Face")


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A pretrained model, with all weights of a `BertForPretraining`."""

    model: BertConfig
    tokenizer: Tokenizer
    weights: dict[str, Tensor] = field(repr=False)
    max_seq_length: int
    truncate: Truncate = "end"
    pooling: Pooling = "mean"  # of a classifier; "cls" needs a pooler that was trained for it
    absent: tuple[str, ...] = ()  # parts missing from the folder, initialized from the seed
    trained_positions: int | None = None  # of a table of positions; None: all of them

    @cached_property
    def continued_weights(self) -> dict[str, Tensor]:
        """The weights, in which the positions that were not trained continue the others."""
        if self.trained_positions is None:
            return self.weights
        trained = self.weights[TABLE][: self.trained_positions]
        return self.weights | {TABLE: continued_positions(trained, self.model)}


def kind_of_model(folder: Path, *, accepted: Sequence[str] = tuple(MODELS)) -> str:
    """Which of the `accepted` kinds, keys of MODELS, a folder is. Raises InputError for others."""
    restore_folder(folder)
    kind = kind_of(folder)
    if kind is None and has_weights(folder):  # perhaps in a form that can be converted
        kind = "Hugging Face"
    if kind not in accepted:
        *others, last = (MODELS[name] for name in accepted)
        raise wrong_folder(folder, f"{', '.join(others)} or {last}")
    return str(kind)


@takes_keywords
def load_pretrained(folder: GivenPath, *, seed: int = 0) -> Pretrained:
    """The newest weights of a run, or those of a Hugging Face folder or classifier, on the CPU.

        >>> load_pretrained("work/run").max_seq_length
        64

    Of a classifier it is the encoder; heads are initialized from the seed. Raises InputError if the
    folder is none of these, or incomplete.
    """
    with local_folder(folder) as local:
        return read_pretrained(local, seed=seed)


def read_pretrained(folder: Path, *, seed: int = 0) -> Pretrained:
    """As `load_pretrained`, from a local folder."""
    kind = kind_of_model(folder)
    if kind == "classifier":
        return _of_classifier(folder, seed=seed)
    if kind == "run":
        config, tokenizer, state, weights = read_run_and_weights(folder)
        return Pretrained(
            model=config.model,
            tokenizer=tokenizer,
            weights=weights,
            max_seq_length=config.data.max_seq_length,
            trained_positions=trained_positions(config, state),
        )
    stored, tokenizer = load_model(folder)
    model = stored.config.model
    heads = ("transform", "classifier")
    weights = {name: x for name, x in stored.weights.items() if part_of(name) not in heads}
    if stored.absent:
        weights = BertForPretraining(model, seed=seed).state_dict() | weights
    return Pretrained(
        model=model,
        tokenizer=tokenizer,
        weights=weights,
        max_seq_length=longest_text(folder, model),
        truncate=side_cut(folder),
        pooling="mean" if "pooler" in stored.absent else stored.config.pooling,
        absent=stored.absent,
    )


def _of_classifier(folder: Path, *, seed: int) -> Pretrained:
    metadata, tokenizer, weights = read_model(folder)
    try:
        model = BertConfig(**metadata["model"])
        start = BertForPretraining(model, seed=seed).state_dict()
    except ValueError as error:
        raise unreadable_model(folder, error) from error
    encoder = {name: value for name, value in weights.items() if name in start}
    pooling: Pooling = "mean" if metadata["pooling"] == "mask" else metadata["pooling"]
    return Pretrained(
        model=model,
        tokenizer=tokenizer,
        weights=start | encoder,
        max_seq_length=metadata["max_seq_length"],
        truncate=metadata["truncate"],
        pooling=pooling,
        absent=tuple({part_of(name): None for name in start.keys() - encoder.keys()}),
    )
