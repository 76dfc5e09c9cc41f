"""The built-in sample's product reviews, with a sentiment that takes some reading.

    product, parts, label   kettle: lid, spout, ...          1 (positive)
    plan                    own, concession, context         (drawn)
    review                  "My Velmora kettle", "The lid of the kettle is superb and elegant.
                            True, the spout seems clumsy and drab. I use it nearly every day."

What is said of a part does not depend on the part: only the company a word keeps shows which side
it is on. Plain reviews also grant the other side a point. So a bag-of-words model learns little
from a few labelled reviews, and a language model learns from many unlabelled ones which words
belong together. In *turning* reviews the other side gets as many words as the writer's own, or
more, and only "although", "but" and "not so" tell which is which.

Review i is a pure function of (seed, i), of the fraction of turning reviews, and of the opinions'
words: all, or every second one. Reviews of even words share no opinion with those of odd ones.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import random_bits, stream_key, uniform_below
from clozeline.pipeline.sources.sample.article_fields import (
    Columns,
    Integers,
    RowRng,
    capitalized,
    filled,
    numbers,
    picks,
    random_order,
)
from clozeline.pipeline.sources.sample.prose import Words, read_toml

#: fraction of the reviews in which the order of the clauses decides
TURNING = 0.1
#: fraction of the plain reviews whose title tells the verdict
TELLING_TITLES = 0.6
#: parts of a product; a review mentions each once at most
PARTS = 6
#: most clauses of the reviewer's own opinion, and of the other side
OWN, OPPOSITE = 4, 3
#: words drawn for each claim, and for the whole product
CLAIM_WORDS = {"adjective": 3, "adverb": 1, "name": 1, "verb": 1}
WHOLE_WORDS = {"adjective": 3, "feeling": 1}
#: which words of opinions.toml a review may use
HALVES = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}
#: Words of negative (0) and positive (1) reviewers: "adjectives", "verdicts", ...
Sides = list[dict[str, Words]]


def numbered(template: str, names: Iterable[str]) -> str:
    """Numbers the slots of each name: "{own}, but {own}"  ->  "{own0}, but {own1}"."""
    counters = {name: count() for name in names}

    def number(slot: re.Match[str]) -> str:
        name, capital = slot.groups()
        return f"{{{name}{next(counters[name])}{capital}}}" if name in counters else slot[0]

    return re.sub(r"{([a-z]+)(_?)}", number, template)


def _with_numbers(templates: Words) -> Words:
    return [numbered(template, CLAIM_WORDS | WHOLE_WORDS) for template in templates]


#: The sentences, in the notation that the file explains.
TEXTS = read_toml("reviews.toml")
#: "nouns" and "parts" of each product.
PRODUCTS: list[dict[str, Words]] = TEXTS["products"]
#: "i", "my", ... of a reviewer who writes for one person, and of one who writes for several.
VOICES: list[dict[str, str]] = TEXTS["voices"]
#: Kinds of sentences in order, for reviews without a turn and with one.
PLANS = [[plan.split() for plan in TEXTS["plans"][kind]] for kind in ("plain", "turning")]
#: Titles that are neutral (0) or tell the verdict (1).
TITLES = [_with_numbers(TEXTS["titles"][kind]) for kind in ("neutral", "telling")]
#: What may be said of a part: "is {adjective0} and {adjective1}".
CLAIMS = _with_numbers(TEXTS["claims"])
SIDES: Sides = list(read_toml("opinions.toml").values())


@dataclass(frozen=True)
class Reviews:
    """Columns of equal length; the numbers are int8."""

    titles: list[str]
    contents: list[str]
    labels: NDArray[np.int8]  #: 1 positive, 0 negative
    turning: NDArray[np.int8]  #: 1 if only the order of the clauses tells the label, else 0


def make_reviews(
    seed: int, start: int, stop: int, *, turning: float = TURNING, words: str = "all"
) -> Reviews:
    """Reviews start..stop-1 of a seed; review i is the same in every range that holds it.

    Reviews 2j and 2j + 1 have different labels, so every even range is balanced. `turning` is the
    fraction of turning reviews; those of a smaller fraction are among those of a larger one.
    `words` is one of HALVES.
    """
    rows = np.arange(start, stop)
    rng = RowRng(seed=seed, scope="sample/review", rows=rows, skew=2)
    # A coin for each pair of rows: the first row gets one side, the second the other.
    coins = uniform_below(random_bits(stream_key(seed, "sample/review/label"), rows // 2), 2)
    labels = (coins ^ (rows % 2)).astype(np.int8)
    sides = [{kind: some[HALVES[words]] for kind, some in side.items()} for side in SIDES]
    whole = opinions(rng, "whole", sides, labels, WHOLE_WORDS)
    fields = review_fields(rng) | whole
    fields |= {f"{name}_": capitalized(texts) for name, texts in whole.items()}
    fields |= clause_fields(rng, sides, labels, nouns=fields["noun"], my=fields["my"])
    is_turning = rng.chance("turning", turning)
    # The titles of turning reviews never tell the verdict.
    telling = rng.chance("title/telling", TELLING_TITLES) & ~is_turning
    title_templates = rng.pick_of("title", TITLES, telling.astype(np.int64))
    content_templates = content_column(rng, sides, labels, is_turning)
    titles, contents = filled(title_templates, fields), filled(content_templates, fields)
    return Reviews(titles, contents, labels, is_turning.astype(np.int8))


def review_fields(rng: RowRng) -> Columns:
    """The reviewer's voice, and what a review mentions besides the product's parts."""
    product = rng.below("product", len(PRODUCTS))
    heads = rng.pick("brand/head", TEXTS["brand_heads"])
    endings = rng.pick("brand/ending", TEXTS["brand_endings"])
    voices = [VOICES[i] for i in rng.below("voice", len(VOICES)).tolist()]
    fields = {word: [voice[word] for voice in voices] for word in VOICES[0]}
    fields |= picks(rng, count="counts", month="months")
    return {
        **fields,
        **{f"{name}_": capitalized(fields[name]) for name in ("i", "my", "count")},
        **numbers(rng, price=(9, 180)),
        "noun": rng.pick_of("noun", [some["nouns"] for some in PRODUCTS], product),
        "brand": [head + ending for head, ending in zip(heads, endings, strict=True)],
        "relative": rng.pick("relative", TEXTS["relatives"]),
        "weekday": rng.pick("weekday", TEXTS["weekdays"]),
        "nth": rng.pick("nth", TEXTS["ordinals"]),
    }


def clause_fields(
    rng: RowRng, sides: Sides, labels: NDArray[np.int8], *, nouns: list[str], my: list[str]
) -> Columns:
    """Clauses about the product's parts in random order: own0.. agree with the label, opp0.. don't.

    The own ones take the parts from the front, the others from the back: no part is mentioned
    twice as long as there are six clauses at most.
    """
    product = rng.below("product", len(PRODUCTS)).tolist()
    order = random_order(rng, "parts", PARTS)
    slots = [(f"own{n}", n, labels) for n in range(OWN)]
    slots += [(f"opp{n}", PARTS - 1 - n, 1 - labels) for n in range(OPPOSITE)]
    fields: Columns = {}
    for name, place, label in slots:
        subjects = rng.evenly().pick(f"{name}/subject", TEXTS["subjects"])
        claims = rng.evenly().pick(f"{name}/claim", CLAIMS)
        templates = [f"{subject} {claim}" for subject, claim in zip(subjects, claims, strict=True)]
        parts = zip(product, order[:, place].tolist(), strict=True)
        words = opinions(rng, name, sides, label, CLAIM_WORDS)
        names = [PRODUCTS[p]["parts"][part] for p, part in parts]
        words |= {"part": names, "noun": nouns, "my": my}
        fields[name] = filled(templates, words)
        fields[f"{name}_"] = capitalized(fields[name])
    return fields


def opinions(
    rng: RowRng, name: str, sides: Sides, label: NDArray[np.int8], counts: dict[str, int]
) -> Columns:
    """`counts[kind]` different words of each kind from each row's side: adjective0, ..."""
    fields: Columns = {}
    for kind, number in counts.items():
        tables = [side[f"{kind}s"] for side in sides]
        limits = np.array([[len(table)] * number for table in tables])[label]
        chosen = distinct(rng.options(f"{name}/{kind}", limits), limits)
        for n, column in enumerate(chosen.T.tolist()):
            pairs = zip(label.tolist(), column, strict=True)
            fields[f"{kind}{n}"] = [tables[side][word] for side, word in pairs]
    return fields


def distinct(chosen: Integers, limits: Integers) -> Integers:
    """Each row's numbers, int64 [rows, width]; one that occurred before becomes the next free."""
    for column in range(1, chosen.shape[1]):
        for _ in range(column):
            taken = (chosen[:, :column] == chosen[:, column, None]).any(1)
            chosen[:, column] = (chosen[:, column] + taken) % limits[:, column]
    return chosen


def content_column(
    rng: RowRng, sides: Sides, labels: NDArray[np.int8], turning: NDArray[np.bool_]
) -> list[str]:
    """A template for each content, as its plan says; no wording is used twice in a review."""
    plans = rng.pick_of("plan", PLANS, turning.astype(np.int64))
    kinds = ("context", "own", "feeling", "concession", "turn", "denial")
    neutral = {kind: TEXTS[kind] for kind in kinds}
    wordings = [neutral | {"verdict": side["verdicts"]} for side in sides]
    orders = {
        kind: random_order(rng, f"wordings/{kind}", len(options)).tolist()
        for kind, options in wordings[0].items()
    }
    templates = []
    for row, (plan, label) in enumerate(zip(plans, labels.tolist(), strict=True)):
        order = {kind: iter(orders[kind][row]) for kind in orders}
        sentences = [wordings[label][kind][next(order[kind])] for kind in plan]
        templates.append(numbered(" ".join(sentences), ("own", "opp", "feeling")))
    return templates
