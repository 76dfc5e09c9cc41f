"""The sample's texts, kept as data files beside this one.

    words.toml      lists of words, countries, and syllables of names
    themes.toml     words that go together in an article
    reviews.toml    products, and the sentences of a review
    opinions.toml   words of praise and of blame
    place.txt ...   the sentences of the articles of a kind

words.toml and themes.toml are read when this module is imported, the others when they are needed.
"""

import tomllib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

PACKAGE = files("clozeline.pipeline.sources.sample")
Words = Sequence[str]


def read_toml(name: str) -> dict[str, Any]:
    return tomllib.loads((PACKAGE / name).read_text("utf-8"))


def read_templates(kind: str) -> str:
    """The sentences of a kind of articles: "place", "person", "species", "work" or "event"."""
    return (PACKAGE / f"{kind}.txt").read_text("utf-8")


WORDS = read_toml("words.toml")
#: "heads", "women" ... -> the syllables or names of each style; two countries share a style.
STYLES: dict[str, list[Words]] = {
    kind: [style[kind] for style in WORDS["styles"]] for kind in WORDS["styles"][0]
}
#: name, adjective, regions; two countries to a style, in the order of the styles.
COUNTRIES: list[dict[str, Any]] = WORDS["countries"]
#: kind of article -> its themes: field -> words. All themes of a kind have the same fields.
THEMES: dict[str, list[dict[str, Words]]] = read_toml("themes.toml")
