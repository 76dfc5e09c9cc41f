"""A recipe for each preset: the numbers of `clozeline pretrain` that are not given.

    bert-base, one GPU           batch_size 256    learning_rate 1e-4    max_steps 1,000,000
    the same, eight GPUs                    2048                2.8e-4                125,000
    the same, --batch-size 512               512                1.4e-4                500,000

A recipe is a table of published numbers, each with its source. `resolve` adds what a paper could
not know: several GPUs share a larger batch, the learning rate follows the batch, a CPU trains on
fewer tokens, and a small data set is not repeated hundreds of times. This file does not import
torch.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from clozeline.model.config import PRESETS, BertConfig, full_name
from clozeline.pipeline.commandline.config_options import option_name
from clozeline.pipeline.common.errors import InputError

Value = int | float | str


class Setting(NamedTuple):
    """A value and where it comes from."""

    value: Value
    source: str


class Origin(NamedTuple):
    """What a run starts from: a run, one of its checkpoints, or a Hugging Face folder."""

    folder: Path
    step: int | None = None  # of the checkpoint; None: the newest

    def __str__(self) -> str:
        return str(self.folder) if self.step is None else f"{self.folder}@{self.step}"

    @classmethod
    def parse(cls, text: str, opened: Callable[[str, int | None], Path] | None = None) -> Self:
        """From "work/run@8000" or a folder; `opened` gives the local one, with that checkpoint."""
        run, _, number = text.rpartition("@")
        step = None
        if run and re.fullmatch("[1-9][0-9]{0,14}", number) and not Path(text).exists():
            text, step = run, int(number)
        return cls(opened(text, step) if opened else Path(text), step)


#: Settings by field of PretrainConfig; `examples` to train on, from which `max_steps` follows; and
#: what is advised for the shards.
Recipe = Mapping[str, Setting]
SHARD_SETTINGS = ("masked_lm_prob", "pairs")

DEVLIN = "Devlin et al. 2018, A.2"
DEVLIN_MASKS = "Devlin et al. 2018, 3.1"
CLARK = "Clark et al. 2020, table 6"
GEIPING = "Geiping & Goldstein 2022"
WARNER = "Warner et al. 2024"
LIU = "Liu et al. 2019"
GURURANGAN = "Gururangan et al. 2020"
MEASURED = "measured on 2 cores"
MEASURED_ON_GPU = "measured on one H200"
AS_SMALL = "as modern-small, of the same width; not measured"

#: The learning rate rises for this many steps, but not for more than a fraction of the run.
WARMUP_STEPS = Setting(10_000, DEVLIN)
WARMUP_FRACTION = Setting(0.06, "Izsak et al. 2021")
#: The largest batch, and a learning rate that none needs to exceed (Liu et al. 2019, table 3, where
#: batches of 256, 2,048 and 8,192 see the same examples).
LARGEST_BATCH, LARGEST_RATE = 8192, 1e-3
SQUARE_ROOT = "square root of the batch's growth (Malladi et al. 2022)"
NO_FURTHER = f"larger batches raise no rate above {LARGEST_RATE:g} ({LIU}, table 3)"
#: Where compute is scarce. Measured for left-to-right models; not known for BERT.
TOKENS_PER_PARAMETER = Setting(20, "20 tokens per parameter (Hoffmann et al. 2022)")
#: BERT's own epochs. Repeating more often is worth nothing (Muennighoff et al. 2023).
MOST_EPOCHS = Setting(40, "40 epochs (Devlin et al. 2018, A.2; Muennighoff et al. 2023)")

#: The last fraction of a `wsd` run, warm-up not counted.
WSD_DECAY = Setting(0.2, "Hägele et al. 2024")


def _from(source: str, **values: Value) -> dict[str, Setting]:
    return {name: Setting(value, source) for name, value in values.items()}


_BERT = {
    **_from(DEVLIN, batch_size=256, examples=256_000_000, learning_rate=1e-4, schedule="linear"),
    **_from("Loshchilov & Hutter 2019", optimizer="adamw"),
    **_from(DEVLIN, weight_decay=0.01, beta1=0.9, beta2=0.999),
    **_from("google-research/bert, optimization.py", clip=1.0),
    "cool_down": WSD_DECAY,
    **_from("bf16 where the device has it", precision="auto"),
    **_from("google-research/bert, modeling.py", word_vectors=False, sampled_words=0),
    **_from(DEVLIN_MASKS, masked_lm_prob=0.15, pairs="segments"),
}
# Its authors' BERT-Small has 14M parameters. Devlin's learning rate is slow for models that small.
_SMALL_BERT = _BERT | _from(CLARK, batch_size=128, examples=128_000_000, learning_rate=5e-4)
_LARGE_BERT = _BERT | _from("Wettig et al. 2022", masked_lm_prob=0.4)
_MEASURED = {
    **_BERT,
    **_from(MEASURED, batch_size=128, learning_rate=3.5e-3, optimizer="muon", word_vectors=True),
    **_from(MEASURED, sampled_words=4096),
    **_from(LIU, beta2=0.98, pairs="none"),
}
# Its norms precede the sublayers, which therefore allow a larger learning rate (Xiong et al. 2020).
_MODERN = {
    **_BERT,
    **_from(GEIPING, batch_size=1536, learning_rate=1e-3, beta2=0.98, clip=0.5),
    **_from(WARNER, masked_lm_prob=0.3, pairs="none"),
}
_SMALL_MODERN = _MODERN | _from(DEVLIN, batch_size=256) | _from(DEVLIN_MASKS, masked_lm_prob=0.15)
# 256 examples of 256 tokens, or 1,024 of 64.
_MODERN_SMALL = {
    **_MODERN,
    **_from(MEASURED_ON_GPU, batch_size=256, learning_rate=3e-3, optimizer="muon"),
    **_from(MEASURED_ON_GPU, word_vectors=True, masked_lm_prob=0.3),
}
# 256 examples of 512 tokens, or 1,024 of 128.
_MODERN_MEDIUM = {
    **_MODERN,
    **_from(DEVLIN, batch_size=256),
    **_from(AS_SMALL, learning_rate=3e-3, optimizer="muon", word_vectors=True),
    **_from("Hägele et al. 2024", schedule="wsd-sqrt"),
    **_from(WARNER, pairs="packed"),
}

RECIPES: dict[str, Recipe] = {
    "nano": _MEASURED,
    "micro": _MEASURED,
    "bert-tiny": _SMALL_BERT,
    "bert-mini": _MEASURED,
    "bert-small": _SMALL_BERT,
    "bert-medium": _SMALL_BERT,
    "bert-base": _BERT,
    "bert-large": _LARGE_BERT,
    "bert-pytorch-base": _BERT,
    "bert-pytorch-large": _LARGE_BERT,
    "d2l": _SMALL_BERT,
    "modern-nano": _SMALL_MODERN,
    "modern-mini": _MEASURED | _from(MEASURED, learning_rate=7e-3),
    "modern-small": _MODERN_SMALL,
    "modern-medium": _MODERN_MEDIUM,
    "modern-base": _MODERN | _from(WARNER, learning_rate=8e-4),
}

#: What a new model reached by its recipe, where and when; docs/manual/recipes.md has the commands.
REACHED = {
    "nano": "held-out loss 3.67 nats (unigram 6.75) on 524,075 reviews of 128 tokens, 15 minutes "
    "of two threads of an AMD EPYC (Zen 4), 2026-11-26",
    "micro": "held-out loss 3.52 nats (unigram 6.75) on 608,317 reviews of 64 tokens, 30 % of the "
    "tokens masked, 5,000 steps in 97 minutes of one thread of an Intel Xeon, 2026-11-29",
    "modern-small": "held-out loss 2.71 nats (unigram 6.77) on 484,000 reviews of 64, then 256 "
    "tokens, 140 seconds of one H200 with --warmup 0.02, 2026-11-26",
}

DEFAULT_PRESET = "nano"

#: For a model that was pretrained elsewhere (`--from`): 12,500 batches of 2,048 of a new domain.
CONTINUED: Recipe = _BERT | _from(
    GURURANGAN, batch_size=256, examples=25_600_000, learning_rate=1e-4, beta2=0.98
)


def check_cool_down(origin: Origin | None, options: Mapping[str, Any]) -> None:
    """Raises InputError for a cool-down from no RUN@STEP, and for options that it excludes."""
    if origin is None or origin.step is None:
        raise InputError(
            "--schedule cool-down continues a run from one of its checkpoints; give it as --from "
            "RUN@STEP, such as work/run@8000."
        )
    for name in ("for_", "phase"):
        if options.get(name):
            raise InputError(
                f"{option_name(name)} does not go with --schedule cool-down; leave it out."
            )


def recipe_of(preset: str) -> Recipe:
    """The recipe of a preset. Raises ValueError for an unknown name."""
    return RECIPES[full_name(preset)]


def recipe_like(model: BertConfig) -> Recipe:
    """For an architecture of one's own: the recipe of the BERT or ModernBERT nearest in size."""
    family, size = "bert-" if model.type_vocab_size else "modern-", _parameters(model)
    like = {x: replace(PRESETS[x], vocab_size=model.vocab_size) for x in PRESETS}
    far = {x: abs(math.log(_parameters(y) / size)) for x, y in like.items() if x.startswith(family)}
    return RECIPES[min(far, key=far.__getitem__)]


def resolve(
    recipe: Recipe,
    given: Mapping[str, Value],
    *,
    model: BertConfig,
    examples: int,
    max_seq_length: int = 128,
    device: str = "cpu",
    world_size: int = 1,
    is_timed: bool = False,
) -> dict[str, Setting]:
    """The settings of a run: what is given, else what the recipe and the rules say.

    `examples` of `max_seq_length` tokens are in the data set; `device` is "cpu" or "cuda";
    `is_timed`: a time budget ends the run, so its number of steps is not known.
    """
    settings = {name: setting for name, setting in recipe.items() if name != "examples"}
    settings |= {name: Setting(value, "given") for name, value in given.items()}
    if "batch_size" not in given:
        settings["batch_size"] = _batch_size(recipe, device=device, world_size=world_size)
    batch_size = int(settings["batch_size"].value)
    growth = batch_size / int(recipe["batch_size"].value)
    if "learning_rate" not in given and growth != 1:
        settings["learning_rate"] = _learning_rate(recipe["learning_rate"], growth)
    if "beta2" not in given and growth > 1:
        settings["beta2"] = Setting(
            min(0.98, float(settings["beta2"].value)), f"{LIU}: large batches"
        )
    if "max_steps" not in given:
        tokens = int(TOKENS_PER_PARAMETER.value) * _parameters(model)
        most = tokens // max_seq_length if device == "cpu" else None
        settings["max_steps"] = _steps(recipe, batch_size, examples=examples, most=most)
    if "warmup" not in given:
        settings["warmup"] = _warmup(None if is_timed else int(settings["max_steps"].value))
    return settings


def _batch_size(recipe: Recipe, *, device: str, world_size: int) -> Setting:
    """A multiple of the number of processes; each GPU adds the recipe's batch, up to a limit."""
    base, source = recipe["batch_size"]
    size = min(int(base) * world_size, LARGEST_BATCH) if device == "cuda" else int(base)
    size = math.ceil(size / world_size) * world_size
    return Setting(size, source if size == base else f"{source}, for {world_size} processes")


def _learning_rate(base: Setting, growth: float) -> Setting:
    rate, most = float(base.value) * math.sqrt(growth), max(float(base.value), LARGEST_RATE)
    rule = SQUARE_ROOT if rate <= most else NO_FURTHER
    return Setting(float(f"{min(rate, most):.2g}"), f"{base.source}; {rule}")


def _steps(recipe: Recipe, batch_size: int, *, examples: int, most: int | None) -> Setting:
    """Steps for the recipe's examples, at most `most` of them, in at most 40 epochs."""
    total, source = recipe["examples"]
    if most is not None and most < int(total):
        total, source = most, TOKENS_PER_PARAMETER.source
    steps = max(1, int(total) // batch_size)
    in_epochs = max(1, int(MOST_EPOCHS.value) * examples // batch_size)
    if steps <= in_epochs:
        return Setting(steps, source)
    return Setting(in_epochs, f"{MOST_EPOCHS.source}, not {steps:,} steps")


def _parameters(model: BertConfig) -> int:
    """The number of weights in a model's matrices; all others are about 1 %."""
    hidden, tables = model.hidden_size, 1 if model.tie_word_embeddings else 2
    layer = 4 * hidden**2 + (2 + model.gated) * hidden * model.intermediate_size
    return tables * model.vocab_size * hidden + model.num_hidden_layers * layer


def _warmup(steps: int | None) -> Setting:
    if steps and (fraction := int(WARMUP_STEPS.value) / steps) < float(WARMUP_FRACTION.value):
        return Setting(float(f"{fraction:.3g}"), f"10,000 steps ({WARMUP_STEPS.source})")
    return WARMUP_FRACTION


def with_decay(
    settings: Mapping[str, Setting], given: Mapping[str, Value], origin: Origin
) -> dict[str, Setting]:
    """The settings with a decay from the step after `origin` to the last one.

    RUN    step 1 ... 8000 ... 10000    learning rate 1e-3, 1e-3, ...
    OUT        8001 ... 10000           learning rate 1e-3 -> 0, in a line

    It is the decay of a `wsd` schedule (Hu et al. 2024, MiniCPM, section 4) or, if the run has that
    one, of `wsd-sqrt`, which may begin at any step: after a constant learning rate, the model is
    bit for bit the one that the schedule makes. Raises InputError if there are no such steps, if
    the rate is 0 already, or if a `given` option contradicts the decay.
    """
    last, step = int(settings["max_steps"].value), origin.step or 0
    if last <= step:
        raise InputError(
            f"--max-steps {last} is not after step {step} of {origin.folder}; give the step at "
            "which the model is finished."
        )
    if not settings["learning_rate"].value:  # at the end of a time budget
        raise InputError(
            f"the learning rate of {origin} has fallen to 0; give an earlier step, or "
            "--learning-rate."
        )
    share = (last - step) / last
    shape = "wsd-sqrt" if settings["schedule"].value == "wsd-sqrt" else "wsd"
    decay: dict[str, Value] = {"schedule": shape, "warmup": 0.0, "cool_down": share}
    for name, value in decay.items():
        if given.get(name, value) != value:
            raise InputError(
                f"{option_name(name)} {given[name]} does not go with --schedule cool-down; leave "
                "it out."
            )
    return {**settings, **{name: Setting(value, str(origin)) for name, value in decay.items()}}
