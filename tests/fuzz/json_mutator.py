"""Mutations of JSON that stays JSON: libFuzzer's own, of bytes, seldom get past the parser."""

import json
import random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 10**7, 10**30, 1e308, float("nan"), 0.5),
    *("", "a", "\ud800", "\0", "0", "x" * 300, [], {}, [[]], [None], {"": None}, ["a", 1]),
)


def mutate_json(data: bytes, seed: int) -> bytes | None:
    """The data with one to three values replaced, removed, doubled or moved; None if not JSON."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return None
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 3)):
        places = list(_places(values))
        if not places:
            return json.dumps(draw.choice(HOSTILE)).encode()
        _change(*draw.choice(places), values, draw)
    return json.dumps(values).encode()


def _places(values: Any) -> Any:
    """Each (container, key) of a JSON value."""
    pending = [values]
    while pending:
        container = pending.pop()
        if isinstance(container, dict | list):
            keys = list(container) if isinstance(container, dict) else range(len(container))
            yield from ((container, key) for key in keys)
            pending += [container[key] for key in keys]


def _change(container: Any, key: Any, values: Any, draw: random.Random) -> None:
    match draw.randrange(6):
        case 0 if isinstance(container, dict):
            container[draw.choice(["", "x", key + "_"])] = container.pop(key)
        case 1:
            del container[key]
        case 2 if isinstance(container, list):
            container.insert(key, container[key])
        case 3 if isinstance(container[key], int | float):
            container[key] = draw.choice([-1, 1, 1000]) * container[key] + draw.choice([0, 1])
        case 4:  # a copy, since a container inside itself is no JSON
            container[key] = json.loads(json.dumps(draw.choice(list(_places(values)))[0]))
        case _:
            container[key] = json.loads(json.dumps(draw.choice(HOSTILE)))
