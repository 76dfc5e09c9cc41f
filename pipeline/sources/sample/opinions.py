"""What the sample's reviews say: reviews.toml, which explains the notation, and opinions.toml."""

import re
from dataclasses import dataclass

from clozeline.pipeline.sources.sample.prose import Words, read_toml


@dataclass(frozen=True)
class Product:
    """A product: its names, and the parts that a review may mention."""

    nouns: Words
    parts: Words


def numbered(template: str, used: dict[str, int]) -> str:
    """Gives each slot in `used` the number of its next value, and counts it there.

    "{own}, but {own}"  ->  "{own0}, but {own1}"
    """

    def number(slot: re.Match[str]) -> str:
        name, capital = slot.groups()
        if name not in used:
            return slot[0]
        used[name] += 1
        return f"{{{name}{used[name] - 1}{capital}}}"

    return re.sub(r"{([a-z]+)(_?)}", number, template)


#: kinds of words in opinions.toml
KINDS = ("adjective", "adverb", "name", "verb", "feeling")


def _with_numbers(templates: Words) -> Words:
    return tuple(numbered(template, dict.fromkeys(KINDS, 0)) for template in templates)


TEXTS = read_toml("reviews.toml")
PRODUCTS = tuple(Product(**product) for product in TEXTS.pop("products"))
#: "i", "my", ... of a reviewer who writes for one person, and of one who writes for several.
VOICES: tuple[dict[str, str], ...] = TEXTS.pop("voices")
#: Kinds of sentences in order, for reviews without a turn and with one.
PLANS: tuple[tuple[list[str], ...], ...] = tuple(
    tuple(plan.split() for plan in TEXTS["plans"][kind]) for kind in ("plain", "turning")
)
#: Titles that are neutral (0) or tell the verdict (1).
TITLES = tuple(_with_numbers(TEXTS["titles"][kind]) for kind in ("neutral", "telling"))
#: What may be said of a part: "is {adjective0} and {adjective1}".
CLAIMS = _with_numbers(TEXTS["claims"])
#: What negative (0) and positive (1) reviewers say: "adjectives", "verdicts", ...
SIDES: tuple[dict[str, Words], ...] = tuple(read_toml("opinions.toml").values())
