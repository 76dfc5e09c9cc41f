"""What the sample's reviews say, from reviews.toml, which explains {own} and {opp}."""

from dataclasses import dataclass

from pipeline.sources.sample.prose import Words, read_toml


@dataclass(frozen=True)
class Part:
    """A part of a product, and the clauses that blame (0) or praise (1) it."""

    clauses: tuple[Words, Words]


@dataclass(frozen=True)
class Product:
    """A product by its names, and what may be said about it."""

    nouns: Words
    parts: tuple[Part, ...]


def _part(name: str, praise: Words, blame: Words) -> Part:
    """The clauses about a part: "lid" and "leaks" make "the lid leaks"."""
    blames, praises = (tuple(f"the {name} {claim}" for claim in some) for some in (blame, praise))
    return Part((blames, praises))


TEXTS = read_toml("reviews.toml")
PRODUCTS = tuple(
    Product(product["nouns"], tuple(_part(**part) for part in product["parts"]))
    for product in TEXTS.pop("products")
)
#: Kinds of sentences in order, of reviews without a turn and with one.
PLANS: tuple[tuple[list[str], ...], ...] = tuple(
    tuple(plan.split() for plan in TEXTS["plans"][kind]) for kind in ("plain", "turning")
)
#: Negative (0) and positive (1) verdicts.
VERDICTS: tuple[Words, ...] = tuple(TEXTS["verdicts"][kind] for kind in ("negative", "positive"))
#: Negative (0), positive (1) and neutral (2) titles.
TITLES: tuple[Words, ...] = tuple(
    TEXTS["titles"][kind] for kind in ("negative", "positive", "neutral")
)
