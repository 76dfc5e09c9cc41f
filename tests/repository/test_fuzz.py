"""The targets of `make fuzz` without the fuzzer: seeds, a few mutations, and what it found."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.faults.mutations import mutate
from tests.fuzz import targets
from tests.fuzz.json_mutator import mutate_json
from tests.fuzz.targets import CONFIG, MODERN, RULES, TARGETS, as_json, tokenizer_bytes


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Of each call to a parser, whether it refused."""
    found: list[bool] = []
    call = targets.refused_in_one_line

    def recorded(read: Callable[[], Any]) -> Any:
        result = call(read)
        found.append(result is None)
        return result

    monkeypatch.setattr(targets, "refused_in_one_line", recorded)
    return found


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_accepts_its_seeds_and_survives_mutations(name: str, refusals: list[bool]) -> None:
    target = TARGETS[name]()
    for seed in target.seeds:
        refusals.clear()
        target.run(seed)
        assert not any(refusals)
        for number in range(12):
            target.run(mutate(seed, random.Random(number)).data)
            if name.endswith(".json"):
                changed = mutate_json(seed, number)
                assert changed is not None
                target.run(changed)


FOUND = (
    ("punkt.json", as_json(RULES.to_json() | {"collocations": [5]})),
    ("punkt.json", as_json({"la\nguage": 2})),
    ("punkt.json", as_json(RULES.to_json() | {"ortho_context": {"he": "x"}})),
    ("config.json", as_json(MODERN | {"rope_parameters": 7})),
    ("config.json", as_json(MODERN | {"layer_types": ["sliding_attention"] * 200_000})),
    ("config.json", as_json(CONFIG | {"num_hidden_layers": 10**30})),
    ("csv", b"text\xfa,label\na,b\n"),
    ("csv", b'\r\nz"nOebelr\x02\xfaa\nz"n\x86\n'),
    ("csv", b"text,\x1dabel\nOne,a\n"),
    ("tokenizer.json", as_json(json.loads(tokenizer_bytes()) | {"added_tokens": 5})),
)


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_the_fuzzer_found_is_refused(name: str, data: bytes, refusals: list[bool]) -> None:
    TARGETS[name]().run(data)
    assert any(refusals)


def test_lines_that_are_no_json_are_rejected_alike_in_blocks_of_any_size() -> None:
    TARGETS["jsonl"]().run(b'{"text": "a"\n }\n{"text": "a"\n }\n')


def test_a_tar_member_without_a_record_batch_is_named(refusals: list[bool]) -> None:
    target = TARGETS["tar"]()
    seed = target.seeds[0]
    for at in range(512, len(seed), 97):  # inside of the member
        target.run(seed[:at] + b"\0\0\0\0" + seed[at + 4 :])
    assert any(refusals)


def test_no_length_in_an_arrow_shard_is_taken_without_a_check(refusals: list[bool]) -> None:
    target = TARGETS["arrow"]()
    seed = target.seeds[0]
    for at in range(0, len(seed) - 4, 4):
        target.run(seed[:at] + b"\xff\xff\xff\xff" + seed[at + 4 :])
    assert any(refusals)


def test_mutated_json_is_json_and_other_bytes_are_not() -> None:
    values = {"a": [1, {"b": None}], "c": "x"}
    made = {mutate_json(json.dumps(values).encode(), seed) for seed in range(50)}
    assert len(made) > 20
    for data in made:
        assert data is not None
        json.loads(data)
    assert mutate_json(b"{", 1) is None
