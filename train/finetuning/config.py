"""The fine-tuning config; free of torch, so that `--help` answers at once."""

from dataclasses import asdict, dataclass
from typing import Any, Self

from model.config import Pooling
from pipeline.common.config_checks import (
    check_at_least,
    check_between,
    check_choices,
    check_positive,
)
from pipeline.common.config_options import option
from train.config import Precision


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """The options of `clozeline finetune`; kept in the classifier's folder."""

    text: str = option("text", "Column (or JSON key) of the text.")
    text_pair: str | None = option(
        None, "Column of a second text; the model reads [CLS] text [SEP] text-pair [SEP]."
    )
    label: str = option("label", "Column of the class: text or whole numbers.")
    max_seq_length: int | None = option(
        None,
        "Maximum tokens per row, including [CLS] and [SEP]; defaults to the pretrained model's.",
    )
    test_share: float = option(
        0.1, "Fraction of the rows held out for testing when there is no --test file."
    )
    max_examples: int | None = option(
        None, "Train on this many rows, drawn at random; defaults to all."
    )
    batch_size: int = option(32, "Rows per step.")
    epochs: int = option(1, "Passes over the training rows.")
    learning_rate: float = option(2e-4, "Peak learning rate.")
    warmup: float = option(
        0.1, "Fraction of the steps in which the learning rate warms up; then it decays to 0."
    )
    weight_decay: float = option(0.01, "Weight decay of matrices; norms and biases have none.")
    clip: float = option(1.0, "Maximum gradient norm; 0 disables clipping.")
    dropout: float = option(0.1, "Dropout probability, whatever the model was pretrained with.")
    pooling: Pooling | None = option(
        None,
        "What is classified: the mean of all token states, or the pooled [CLS]; defaults to cls "
        "for Hugging Face models with a trained pooler, else to mean.",
    )
    precision: Precision = option("fp32", "`bf16` runs matrix products in bfloat16 (autocast).")
    from_scratch: bool = option(
        False, "Also train the same model without pretraining, for comparison."
    )
    baseline: bool = option(True, "Also score a bag-of-words baseline (needs scikit-learn).")
    label_efficiency: tuple[int, ...] = option(
        (), "Also train on this many rows, for a curve of accuracy over labels."
    )
    seed: int = option(0, "Random seed of the classifier's initial weights, dropout and row order.")

    def __post_init__(self) -> None:
        check_between("batch_size", self.batch_size, 1, 1 << 20)
        check_between("epochs", self.epochs, 1, 10_000)
        check_between("seed", self.seed, 0, (1 << 63) - 1)
        check_between("test_share", self.test_share, 0.001, 0.9)
        check_between("warmup", self.warmup, 0, 0.99)
        check_between("dropout", self.dropout, 0, 0.99)
        check_between("max_seq_length", self.max_seq_length or 8, 8, 65_535)
        for size in (*self.label_efficiency, *filter(None, [self.max_examples])):
            check_between("number of examples", size, 2, 1 << 40)
        for name in ("clip", "weight_decay"):
            check_at_least(name, getattr(self, name), 0)
        check_positive("learning_rate", self.learning_rate)
        check_choices(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON stores them."""
        return {**asdict(self), "label_efficiency": list(self.label_efficiency)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**{**values, "label_efficiency": tuple(values["label_efficiency"])})
