"""Parts of a run that follow each other, with the fraction of the run that each takes.

    ["0.3@0.9", "0.05"]  ->  0.3 from 0 on, 0.05 from 0.9 on
    ["0.3", "0.15"]      ->  0.3 from 0 on, 0.15 from 0.5 on

Parts without a fraction share what the others leave, equally.
"""

import re
from collections.abc import Sequence
from itertools import accumulate

#: As Python prints numbers, too; float() also takes "nan" and other scripts' digits.
NUMBER = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?")
FRACTION = re.compile(r"[0-9]*\.?[0-9]+")


def parse_parts(parts: Sequence[str], *, name: str, given: object) -> list[tuple[float, str]]:
    """The fraction of the run at which each part begins, and the part without its fraction.

    Raises ValueError, with the option and what was `given`, for fractions that do not make up a
    run.
    """
    split = [_split(part) for part in parts]
    fractions = [fraction for _, fraction in split if fraction is not None]
    total = sum(fractions)
    if not all(value for value, _ in split):
        raise ValueError(f"{name} is {given!r}, of which a part is empty; leave that out.")
    if any(not 0 < fraction < 1 for fraction in fractions):
        raise ValueError(
            f"{name} is {given!r}; a fraction, after the last @ of a part, must be above 0 and "
            "below 1."
        )
    rest = len(parts) - len(fractions)
    if not rest and abs(total - 1) > 1e-6:
        raise ValueError(
            f"{name} is {given!r}; its fractions sum to {total:g}, not 1. Leave the last one out."
        )
    if rest and total > 1 - 1e-6:
        raise ValueError(f"{name} is {given!r}; its fractions leave nothing for the other parts.")
    lengths = [(1 - total) / rest if fraction is None else fraction for _, fraction in split]
    starts = accumulate(lengths[:-1], initial=0.0)
    return [(round(start, 9), value) for start, (value, _) in zip(starts, split, strict=True)]


def parse_rates(text: str, *, name: str) -> list[tuple[float, float]]:
    """ "0.3:0.15" -> [(0.0, 0.3), (0.5, 0.15)]: where each rate begins, and the rate.

    Raises ValueError, naming the option, where they are not numbers.
    """
    if not isinstance(text, str):  # a number of a Python caller
        raise ValueError(f"{name} is {text!r}; give a text, such as '0.3:0.15'.")
    parts = parse_parts(text.split(":"), name=name, given=text)
    if not all(NUMBER.fullmatch(rate) for _, rate in parts):
        raise ValueError(f"{name} is {text!r}; give rates, such as 0.3:0.15 or 0.3@0.9:0.05.")
    return [(start, float(rate)) for start, rate in parts]


def _split(part: str) -> tuple[str, float | None]:
    """ "work/64@0.5" -> ("work/64", 0.5); what follows the last @ may also belong to the value."""
    value, at, fraction = part.rpartition("@")
    return (value, float(fraction)) if at and FRACTION.fullmatch(fraction) else (part, None)
