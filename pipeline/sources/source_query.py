"""The options of a source, as in a URL: `sample:articles?size=250MB&seed=0`.

parse_query(source, "size=2MB", {"size": "10MB", "seed": "0"})  ->  {"size": "2MB", "seed": "0"}
"""

import re
from collections.abc import Mapping
from urllib.parse import unquote_plus

from pipeline.common.errors import InputError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_query(source: str, query: str, defaults: Mapping[str, str]) -> dict[str, str]:
    """The options of a query, with the defaults of those that it does not name.

    Raises InputError for an unknown option, with a list of the known ones.
    """
    options = dict(defaults)
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name not in defaults:
            known = ", ".join(defaults)
            raise InputError(f"{source}: no option '{name}'; the options are {known}")
        options[name] = unquote_plus(value)
    return options


def whole_number(source: str, name: str, text: str) -> int:
    """The number that an option gives. Raises InputError."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InputError(f"{source}: {name} is a whole number, as in {name}=5000, not '{text}'")
    return int(text)


def byte_size(source: str, name: str, text: str) -> int:
    """The bytes that an option gives: 2100, 64KB, 1.5MB, 1gb. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]+)?)([KMGT]?)B?", text.upper())
    if not match:
        raise InputError(
            f"{source}: {name} is bytes, as in {name}=250MB or {name}=64KB, not '{text}'"
        )
    return int(float(match[1]) * UNITS[match[2]])


def fraction(source: str, name: str, text: str) -> float:
    """The number from 0 to 1 that an option gives. Raises InputError."""
    if not re.fullmatch(r"0(\.[0-9]{1,4})?|1(\.0{1,4})?", text):
        raise InputError(f"{source}: {name} is from 0 to 1, as in {name}=0.25, not '{text}'")
    return float(text)
