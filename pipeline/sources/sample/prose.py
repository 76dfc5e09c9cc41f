"""The sample's texts, kept as data files beside this one.

    words.toml      lists of words, countries, and syllables of names
    themes.toml     words that go together in an article
    reviews.toml    products, and the sentences of a review
    opinions.toml   words of praise and of blame
    place.txt ...   the sentences of the articles of a kind

They are read when this module is imported, which takes tens of milliseconds.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

PACKAGE = files("clozeline.pipeline.sources.sample")
Words = tuple[str, ...]


@dataclass(frozen=True)
class Style:
    """How names sound in a part of the invented world: head + middle + ending."""

    heads: Words
    middles: Words
    towns: Words
    rivers: Words
    surnames: Words
    women: Words
    men: Words


@dataclass(frozen=True)
class Country:
    """A country, its adjective and its eight regions."""

    name: str
    adjective: str
    regions: Words


def read_toml(name: str) -> dict[str, Any]:
    """A data file, its arrays as tuples."""
    found: dict[str, Any] = _frozen(tomllib.loads((PACKAGE / name).read_text("utf-8")))
    return found


def read_templates(kind: str) -> str:
    """The sentences of a kind of articles: "place", "person", "species", "work" or "event"."""
    return (PACKAGE / f"{kind}.txt").read_text("utf-8")


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _frozen(inner) for key, inner in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


WORDS = read_toml("words.toml")
#: Two countries to a style, in the order of the styles.
STYLES = tuple(Style(**style) for style in WORDS.pop("styles"))
COUNTRIES = tuple(Country(**country) for country in WORDS.pop("countries"))
#: kind of article -> its themes: field -> words. All themes of a kind have the same fields.
THEMES: dict[str, tuple[dict[str, Words], ...]] = read_toml("themes.toml")
