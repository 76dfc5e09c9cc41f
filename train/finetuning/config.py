"""How a classifier is fine-tuned; without torch, so that a command line can show it at once."""

from dataclasses import asdict, dataclass
from typing import Any, Self, get_args

from train.config import Precision


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """The choices of `clozeline finetune`; the classifier's folder keeps them."""

    #: Column (or JSON key) of the text.
    text: str = "text"
    #: Column of a second text, which stands after the first: [CLS] text [SEP] text-pair [SEP].
    text_pair: str | None = None
    #: Column of the class: text or whole numbers.
    label: str = "label"
    #: Tokens of a row at most, [CLS] and [SEP] counted; not given: as in pretraining.
    max_seq_length: int | None = None
    #: The share of rows held out to be tested on, where no test file is given.
    test_share: float = 0.1
    #: Training rows at most, drawn at random; not given: all.
    max_examples: int | None = None
    #: Rows of a step.
    batch_size: int = 32
    #: How often each row is read.
    epochs: int = 1
    #: Highest learning rate.
    learning_rate: float = 2e-4
    #: The share of steps in which the learning rate rises; then it falls to 0.
    warmup: float = 0.1
    #: Of weight matrices; never of norms and biases.
    weight_decay: float = 0.01
    #: Gradient norm at most; 0: no clipping.
    clip: float = 1.0
    #: Instead of the pretrained model's.
    dropout: float | None = None
    #: `bf16`: autocast of the matrix products.
    precision: Precision = "fp32"
    #: Also train the same model without pretraining, to be reported beside.
    from_scratch: bool = False
    #: Report bag-of-words beside (needs scikit-learn).
    baseline: bool = True
    #: Also train on so many rows only, for a curve of accuracy over examples.
    label_efficiency: tuple[int, ...] = ()
    #: Of the classifier's first weights, of dropout and of every random choice.
    seed: int = 0

    def __post_init__(self) -> None:
        _between("batch_size", self.batch_size, 1, 1 << 20)
        _between("epochs", self.epochs, 1, 10_000)
        _between("seed", self.seed, 0, (1 << 63) - 1)
        _between("test_share", self.test_share, 0.001, 0.9)
        _between("warmup", self.warmup, 0, 0.99)
        _between("dropout", self.dropout or 0, 0, 0.99)
        _between("max_seq_length", self.max_seq_length or 8, 8, 65_535)
        for size in (*self.label_efficiency, *filter(None, [self.max_examples])):
            _between("a number of examples", size, 2, 1 << 40)
        for name in ("clip", "weight_decay"):
            _between(name, getattr(self, name), 0, float("inf"))
        if self.learning_rate <= 0:
            raise ValueError(f"learning_rate is {self.learning_rate}; give more than 0.")
        if self.precision not in get_args(Precision):
            known = ", ".join(get_args(Precision))
            raise ValueError(f"precision is {self.precision!r}; it is one of {known}.")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as JSON stores them."""
        return {**asdict(self), "label_efficiency": list(self.label_efficiency)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**{**values, "label_efficiency": tuple(values["label_efficiency"])})


def _between(name: str, found: float, low: float, high: float) -> None:
    if not low <= found <= high:
        raise ValueError(f"{name} is {found}; it lies between {low} and {high}.")
