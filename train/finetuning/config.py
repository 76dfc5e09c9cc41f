"""The fine-tuning config; free of torch, so that `--help` answers at once."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

from clozeline.pipeline.commandline.config_options import option
from clozeline.pipeline.common.config_checks import (
    check_at_least,
    check_between,
    check_choices,
    check_positive,
    checks_keywords,
)
from clozeline.pipeline.common.errors import OptionError
from clozeline.train.config import LARGEST_LEARNING_RATE, Optimizer, Precision, Truncate

Auto = Literal["auto"]
COLUMNS = ("text", "text_pair", "label")
LIMITS = {
    **{"seeds": (1, 1_000), "seed": (0, (1 << 63) - 1_001), "warmup": (0, 0.99)},
    **{"dropout": (0, 0.99), "max_seq_length": (8, 65_535), "max_examples": (2, 1 << 40)},
    **{"batch_size": (1, 1 << 20), "epochs": (1, 10_000)},
}

_data = partial(option, group="Data")
_model = partial(option, group="Model")
_training = partial(option, group="Training")
_comparison = partial(option, group="Comparison")


@checks_keywords
@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """The options of `clozeline finetune`; kept in the classifier's folder.

    >>> FinetuneConfig(text="title,content", seeds=3).all_seeds
    range(0, 3)
    """

    text: str = _data(
        "text", "Column (or JSON key) of the text; `title,content` joins columns, a line each."
    )
    text_pair: str | None = _data(
        None, "Column of a second text; the model reads [CLS] text [SEP] text-pair [SEP]."
    )
    label: str = _data("label", "Column of the class: text or whole numbers.")
    max_seq_length: int | None = _data(
        None,
        "Maximum tokens per row, including [CLS] and [SEP]; defaults to the pretrained model's.",
    )
    truncate: Truncate | None = _data(
        None,
        "What a longer text loses: its `end`, its `start`, or its `middle`, with three times as "
        "much left of the end as of the start. Defaults to `end`, or `start` where a "
        "Hugging Face tokenizer cuts there.",
    )
    max_examples: int | None = _data(
        None, "Train on this many rows, drawn at random; defaults to all."
    )
    pooling: Literal["mean", "cls"] | None = _model(
        None,
        "What is classified: the mean of all token states, or the pooled [CLS]; defaults to cls "
        "for a Hugging Face BERT with a trained pooler, to the classifier_pooling of a ModernBERT, "
        "else to mean.",
    )
    prompt: str | None = _model(
        None,
        'Words with a [MASK] before each text, as in "overall it was [MASK] ."; instead of '
        "a --pooling, the state at [MASK] is classified, with the layer of the masked-LM head.",
    )
    label_words: str | None = _model(
        None,
        "With --prompt: words for [MASK] from which each class starts, as in "
        r'"0=bad,awful;1=good,great"; `\;` is a semicolon in a class name.',
    )
    dropout: float = _model(0.1, "Dropout probability, instead of that of pretraining.")
    batch_size: int | Auto = _training(
        "auto", "Rows per step; `auto` is 32, and fewer (at least 8) where there are few rows."
    )
    epochs: int | Auto = _training(
        "auto",
        "Passes over the training rows; `auto` is 12 for up to 500 rows, 6 for 2,000, 4 for 20,000 "
        "and 3 for more; of up to 4,000 rows it also tries half as many on held-out training rows.",
    )
    optimizer: Optimizer = _training(
        "adamw", "`muon` trains the layers' weight matrices and leaves everything else to AdamW."
    )
    learning_rate: float | Auto = _training(
        "auto",
        "Peak learning rate; `auto` tries three to five on rows held out of the training rows.",
    )
    warmup: float = _training(
        0.1, "Fraction of the steps in which the learning rate warms up; then it decays to 0."
    )
    weight_decay: float = _training(0.01, "Weight decay of matrices; norms and biases have none.")
    precision: Precision = _training(
        "auto", "`bf16` runs matrix products in bfloat16; `auto` does where that is native."
    )
    compile: bool = _training(
        False,
        "Compile the training on all rows, if they are more than 4,000, with torch.compile; for "
        "long trainings on a GPU.",
    )
    from_scratch: bool = _comparison(
        False, "Also train the same model without pretraining, for comparison."
    )
    baseline: bool = _comparison(True, "Also score a bag-of-words baseline (needs scikit-learn).")
    label_efficiency: str = _comparison(
        "",
        "Also train on fewer rows, as in 100,1000,all: the pretrained model, the same model from "
        "scratch and bag-of-words.",
    )
    seeds: int = _comparison(
        1, "Train with this many seeds and report mean and standard deviation."
    )
    seed: int = _training(
        0, "First random seed: initial weights of the classifier, dropout, choice of rows."
    )

    def __post_init__(self) -> None:
        check_choices(self)
        check_at_least("weight_decay", self.weight_decay, 0)
        for name, (least, most) in LIMITS.items():
            if (value := getattr(self, name)) not in (None, "auto"):
                check_between(name, value, least, most)
        if self.learning_rate != "auto":
            check_positive("learning_rate", self.learning_rate, most=LARGEST_LEARNING_RATE)
        self.sizes(1 << 62)  # raises if it is not a list of sizes
        for name in ("prompt", "label_words"):
            if (text := getattr(self, name)) is not None and not text.strip(" ;"):
                raise OptionError(f"{name} is {text!r}; leave it out, or give words.")
        if self.words_of_classes and not self.prompt:
            raise OptionError("label_words are for the [MASK] of a prompt; give --prompt, too.")
        if self.prompt and self.pooling:
            raise OptionError(
                "with a prompt the state at [MASK] is classified; leave --pooling out."
            )

    @property
    def all_seeds(self) -> range:
        return range(self.seed, self.seed + self.seeds)

    @property
    def words_of_classes(self) -> dict[str, list[str]]:
        r"""The words of each class; `\;` is a semicolon in a name.

        "0=bad,awful;1=good" -> {"0": ["bad", "awful"], "1": ["good"]}
        """
        classes: dict[str, list[str]] = {}
        for part in filter(None, re.split(r"(?<!\\);", self.label_words or "")):
            name, equals, listed = part.replace(r"\;", ";").rpartition("=")
            words = [word.strip() for word in listed.split(",")]
            if not equals or not all(words) or name.strip() in classes:
                raise OptionError(
                    f"label_words has {part.strip()!r}; give each class once, with its words, as "
                    "in 0=bad,awful;1=good,great."
                )
            classes[name.strip()] = words
        return classes

    def sizes(self, rows: int) -> list[int]:
        """Numbers of training rows, ascending; the last one is always `rows`, all of them."""
        parts = self.label_efficiency.split(",") if self.label_efficiency else []
        numbers = [part.strip() for part in parts if part.strip() != "all"]
        if not all(re.fullmatch("[0-9]{1,12}", part) and int(part) >= 2 for part in numbers):
            raise OptionError(
                f"label_efficiency is {self.label_efficiency!r}; give numbers of rows from 2 on "
                "with commas between, as in 100,1000,all."
            )
        return sorted({rows, *map(int, numbers)})
