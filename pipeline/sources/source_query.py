"""Sources that are no files: `sample:` (a built-in generator) and `hf://` (the datasets library).

    sample:articles?size=250MB&seed=0    sample:reviews?rows=5000&seed=0&start=100000
    hf://wikimedia/wikipedia?name=20231101.en&split=train    hf://FOLDER

`start` skips the first rows, so that held-out reviews come from the same seed.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

from pipeline.common.errors import InputError
from pipeline.sources.documents import one_line

SAMPLE, HUB = "sample:", "hf://"
SAMPLE_OPTIONS = {
    "articles": {"size": "10MB", "seed": "0"},
    "reviews": {"rows": "5000", "seed": "0", "start": "0"},
}
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, kw_only=True)
class SampleQuery:
    """Articles or reviews [start, stop) of a seed."""

    kind: str  #: "articles" or "reviews"
    start: int
    stop: int
    seed: int
    size: int  #: of the articles, bytes; 0 for reviews


def parse_sample(source: str) -> SampleQuery:
    """What a `sample:` source asks for. Raises InputError, which lists the options."""
    from pipeline.sources.sample.articles import count_articles

    kind, _, query = source.removeprefix(SAMPLE).partition("?")
    if kind not in SAMPLE_OPTIONS:
        raise InputError(f"{source}: there is sample:articles and sample:reviews, no '{kind}'")
    options = SAMPLE_OPTIONS[kind] | _options(source, query, tuple(SAMPLE_OPTIONS[kind]))
    seed = _whole_number(source, "seed", options["seed"])
    if kind == "articles":
        size = _size(source, options["size"])
        return SampleQuery(kind=kind, start=0, stop=count_articles(size), seed=seed, size=size)
    start = _whole_number(source, "start", options["start"])
    rows = _whole_number(source, "rows", options["rows"])
    return SampleQuery(kind=kind, start=start, stop=start + rows, seed=seed, size=0)


def load_hub_dataset(source: str) -> Any:
    """The `datasets.Dataset` that an `hf://` source names, downloaded where it is not yet.

    Raises InputError, with the library's own reason, where there is no such data set.
    """
    name, _, query = source.removeprefix(HUB).partition("?")
    options = {"split": "train"} | _options(source, query, ("name", "split"))
    return _load(name, options.get("name"), options["split"])


@lru_cache(maxsize=1)  # each block of the same data set would ask the Hub again
def _load(path: str, name: str | None, split: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError("hf:// sources need: pip install 'clozeline[pipeline]'") from error
    try:
        return load_dataset(path, name, split=split)
    except Exception as error:  # the library has no common class for what can go wrong
        raise InputError(
            f"hf://{path} (name {name}, split {split}) cannot be loaded: {one_line(error)}"
        ) from error


def _options(source: str, query: str, good: tuple[str, ...]) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    rest = "&".join(part for part in query.split("&") if "=" not in part)
    bad = [key for key in options if key not in good] or [rest] * bool(rest)
    if bad:
        raise InputError(f"{source}: no option '{bad[0]}'; there is {', '.join(good)}")
    return options


def _whole_number(source: str, name: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InputError(f"{source}: {name} is a whole number, as in {name}=5000, not '{text}'")
    return int(text)


def _size(source: str, text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]+)?)([KMGT]?)B?", text.upper())
    if not match:
        raise InputError(f"{source}: size is bytes, as in size=250MB or size=64KB, not '{text}'")
    return int(float(match[1]) * UNITS[match[2]])
