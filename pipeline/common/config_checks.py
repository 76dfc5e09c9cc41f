"""Numbers with units, checks of config values, and what differs between two configs.

byte_size("1.5MB", "size")  ->  1_500_000        size_in_words(1_500_000)  ->  "1.5 MB"
counted(2, "shard")         ->  "2 shards"       time_in_words(7260)       ->  "2 h 1 min"
check_between("validation", 0.9, 0.0, 0.5)  ->  validation is 0.9; it must be 0.0 to 0.5.
differences({"seed": 0, "pairs": "none"}, {"seed": 3, "pairs": "none"})  ->  ["seed 0 there, 3 now"]
"""

import inspect
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from decimal import Decimal
from functools import wraps
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from clozeline.pipeline.common.errors import InputError, OptionError, did_you_mean

Config = TypeVar("Config", bound=Any)  #: a dataclass of options
Function = TypeVar("Function", bound=Callable[..., Any])
PLAIN = {str, int, float, bool}
CHECKED = PLAIN | {NoneType, list, tuple, dict, set}  #: other types may stand for one of PLAIN
FACTORS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def byte_size(text: str, name: str) -> int:
    """The bytes that an option called `name` gives: 2100, 64KB, 1.5MB, 1gb. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]+)?)([KMGT]?)B?", text.upper())
    if not match:
        raise InputError(f"{name} is {text!r}; give bytes, such as 250MB or 64KB.")
    return int(Decimal(match[1]) * FACTORS[match[2]])


def token_number(text: str, name: str) -> int:
    """The tokens that an option called `name` gives: 5000, 200k, 50M, 1.5B. Raises InputError."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]+)?)([KMBT]?)", text.upper())
    count = int(Decimal(match[1]) * FACTORS[match[2].replace("B", "G")]) if match else 0
    if not count:
        raise InputError(f"{name} is {text!r}; give a number of tokens, such as 50M or 1.5B.")
    return count


def size_in_words(count: int) -> str:
    """The bytes with one decimal, in kB or more."""
    unit = next((unit for unit in "TGM" if count >= FACTORS[unit]), "K")
    return f"{count / FACTORS[unit]:.1f} {unit.replace('K', 'k')}B"


def time_in_words(seconds: float) -> str:
    """To the second below an hour, else to the minute."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def counted(number: int, noun: str) -> str:
    """The number and the noun, with an s unless it is one."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


DIGEST = re.compile("[0-9a-f]{16,}")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MOST_SECONDS = 3650 * SECONDS["d"]


def check_between(name: str, value: float, low: float, high: float) -> None:
    """Both bounds are allowed; NaN is not."""
    if not low <= value <= high:
        raise OptionError(f"{name} is {value}; it must be {low} to {high}.")


def check_at_least(name: str, value: float, low: float) -> None:
    """The bound is allowed; infinity and NaN are not."""
    if not low <= value < math.inf:
        raise OptionError(f"{name} is {value}; it must be {low} or more{_finite(value)}.")


def check_positive(name: str, value: float, *, most: float = math.inf) -> None:
    """Raises ValueError for zero and less, more than `most`, infinity and NaN."""
    if not 0 < value < math.inf:
        raise OptionError(f"{name} is {value}; it must be more than 0{_finite(value)}.")
    if value > most:
        raise OptionError(f"{name} is {value}; it must be at most {most:g}.")


def check_word(name: str, value: object, words: Collection[str]) -> None:
    """Raises OptionError for a value that is not one of `words`."""
    if value not in words:
        near = did_you_mean(str(value), words) if isinstance(value, str) else "."
        known = f"it must be one of {', '.join(words)}"
        raise OptionError(f"{name} is {value!r}; {known}{near}")


def check_fraction(name: str, value: float) -> None:
    """Raises ValueError outside [0, 1)."""
    if not 0 <= value < 1:
        raise OptionError(f"{name} is {value}; it must be at least 0 and below 1.")


def seconds(time: str, *, name: str, zero: bool = False) -> float:
    """ "1h30m" -> 5400.0. Raises ValueError, naming the option, for anything else or no time."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", time)
    if "".join(map("".join, parts)) != time or not parts:
        raise OptionError(f"{name} is {time!r}; give a time such as 90s, 30m, 1h30m or 2d.")
    total = sum(float(number) * SECONDS[unit] for number, unit in parts)
    if total > MOST_SECONDS:
        raise OptionError(f"{name} is {time!r}; it must be 10 years (3650d) at most.")
    if total <= 0 and not zero:
        raise OptionError(f"{name} is {time!r}; it must be more than 0.")
    return total


def check_choices(config: object) -> None:
    """A word must be one of the field's `Literal`, which may be part of a union."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        literals = [part for part in (hint, *get_args(hint)) if get_origin(part) is Literal]
        words = [word for literal in literals for word in get_args(literal)]
        is_word = isinstance(value, str) or hint in literals
        if words and is_word:
            check_word(name, value, words)


def check_types(config: object) -> None:
    """Each field has its declared type, list items included; for values read from a file."""
    for name, hint in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if not _is_of_type(value, hint):
            raise ValueError(f"{name} is {value!r:.40}; it is of another type")


def _is_of_type(value: Any, hint: Any) -> bool:
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (UnionType, Union):
        return any(_is_of_type(value, part) for part in parts)
    if kind is Literal:
        return value in parts if isinstance(value, str) else False
    if kind is dict:
        return isinstance(value, dict) and set(map(type, value.values())) <= {parts[1]}
    if kind in (list, tuple):
        if get_origin(parts[0]):
            return isinstance(value, kind) and all(_is_of_type(part, parts[0]) for part in value)
        return isinstance(value, kind) and set(map(type, value)) <= {parts[0]}
    return type(value) in ((int, float) if hint is float else (hint,))


def check_field_names(config_class: type, stored: Iterable[str]) -> None:
    """For a dataclass that may have been stored by another version of this code."""
    expected, stored = {field.name for field in fields(config_class)}, set(stored)
    parts = {"unknown": stored - expected, "missing": expected - stored}
    if wrong := [f"{kind} {', '.join(sorted(names))}" for kind, names in parts.items() if names]:
        raise ValueError(f"written by another version of Clozeline: {'; '.join(wrong)}")


def check_keywords(function: Callable[..., Any], given: Mapping[str, Any], *configs: Any) -> None:
    """Raises InputError for keywords that none of the configs has, OptionError for other types.

    A config is a dataclass, or a function of its own keywords. Where only texts, numbers and bools
    belong, values of Python's own types are checked: NumPy's numbers are good, too.
    """
    hints = {name: hint for config in configs for name, hint in get_type_hints(config).items()}
    hints.pop("return", None)
    for name, value in given.items():
        call = f"{function.__qualname__.removesuffix('.__init__')}()"
        if name not in hints:
            near = did_you_mean(name, [*hints, *inspect.signature(function).parameters])
            raise InputError(f"{call} has no option {name!r}{near}")
        kinds = _plain_kinds(hints[name])
        good = {*kinds, int} if float in kinds else {*kinds}
        if kinds and type(value) in CHECKED - good:
            wanted = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
            raise OptionError(f"{call}: {name} is {value!r:.60}; give it as {wanted}.")


def _plain_kinds(hint: Any) -> list[type]:
    """The types of a hint that has only texts, numbers, bools and None; empty for another one.

    int | Literal["auto"]  ->  [int, str]        str | PathLike  ->  []
    """
    parts = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    kinds = [type(get_args(x)[0]) if get_origin(x) is Literal else x for x in parts]
    return kinds if {*kinds} <= PLAIN | {NoneType} else []


def checks_keywords(config: type[Config]) -> type[Config]:
    """A class decorator for configs: keywords that are not fields are refused by `check_keywords`.

    >>> DataConfig(max_seq_len=64)
    InputError: DataConfig() has no option 'max_seq_len'; did you mean max_seq_length?

    Where several names belong, one may be given alone, or a list.
    """
    build = config.__init__
    several = [field.name for field in fields(config) if field.type == tuple[str, ...]]

    @wraps(build)
    def init(self: Any, **values: Any) -> None:
        check_keywords(config, values, config)
        for name in values.keys() & several:
            value = values[name]
            listed = value if isinstance(value, list | tuple | set | frozenset) else [value]
            if not all(isinstance(item, str) for item in listed):
                raise InputError(
                    f"{config.__name__}(): {name} is {value!r:.60}; give a str, or a list of them."
                )
            values[name] = tuple(listed)
        build(self, **values)

    config.__init__ = init
    return config


def takes_keywords(function: Function) -> Function:
    """A decorator for public functions: keywords are checked by `check_keywords`.

    >>> evaluate("work/run", "work/shards", limmit=64)
    InputError: evaluate() has no option 'limmit'; did you mean limit?
    """

    @wraps(function)
    def checked(*arguments: Any, **keywords: Any) -> Any:
        check_keywords(function, keywords, function)
        return function(*arguments, **keywords)

    return cast(Function, checked)


def with_fields(config: Config, values: Mapping[str, Any]) -> Config:
    """The dataclass with those of the given values that are its fields.

    Raises InputError for something else than a dataclass.
    """
    if not is_dataclass(type(config)):
        raise InputError(f"a config is {type(config).__name__}; give its values as keywords.")
    own = {field.name: values[field.name] for field in fields(config) if field.name in values}
    return replace(config, **own)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """One phrase for each name in `after` whose value differs; digests are cut short.

    `for_`, the field of --for, is "for".
    """
    return [
        f"{name.rstrip('_')} {_shown(before.get(name))} there, {_shown(value)} now"
        for name, value in after.items()
        if before.get(name) != value
    ]


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    is_digest = isinstance(value, str) and DIGEST.fullmatch(value)
    return value[:12] if is_digest else repr(value)


def _finite(value: float) -> str:
    return "" if math.isfinite(value) else " and finite"
