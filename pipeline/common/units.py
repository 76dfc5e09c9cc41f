"""Numbers with units, as people write and read them.

byte_size("1.5MB", "size")  ->  1_500_000        size_in_words(1_500_000)  ->  "1.5 MB"
token_number("1.5B", "tokens")  ->  1_500_000_000
counted(2, "shard")         ->  "2 shards"       time_in_words(7260)       ->  "2 h 1 min"
"""

import re
from decimal import Decimal

from clozeline.pipeline.common.errors import InputError

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
