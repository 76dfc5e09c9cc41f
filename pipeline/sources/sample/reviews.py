"""The built-in sample's product reviews, with a sentiment that takes some reading.

    product, parts, label   kettle: lid, spout, ...          1 (positive)
    plan                    context, turn                    (drawn)
    review                  "My Velmora kettle", "I use it nearly every day. Although the lid
                            jams, the spout pours neatly."

Most reviews are plain, and counting words is enough. In *turning* reviews praise and blame are
equally frequent, and only "although", "but" and "not so" tell which side the writer is on.

Review i is a pure function of (seed, i) and of the fraction of turning reviews.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.common.counter_rng import random_bits, stream_key, uniform_below
from pipeline.sources.sample.article_fields import Columns, Integers, RowRng, random_order, strings
from pipeline.sources.sample.opinions import PLANS, PRODUCTS, TEXTS, TITLES, VERDICTS
from pipeline.sources.sample.prose import WORDS, Words

#: fraction of the reviews in which the order of the clauses decides
TURNING = 0.25
#: fraction of the plain reviews whose title tells the verdict
TELLING_TITLES = 0.6
#: parts of a product; a review mentions each once at most
PARTS = 6


@dataclass(frozen=True)
class Reviews:
    """Columns of equal length; the numbers are int8."""

    titles: list[str]
    contents: list[str]
    labels: NDArray[np.int8]  #: 1 positive, 0 negative
    turning: NDArray[np.int8]  #: 1 if only the order of the clauses tells the label, else 0


def make_reviews(seed: int, start: int, stop: int, *, turning: float = TURNING) -> Reviews:
    """Reviews start..stop-1 of a seed; review i is the same in every range that holds it.

    Reviews 2j and 2j + 1 have different labels, so every even range is balanced. `turning` is the
    fraction of turning reviews; those of a smaller fraction are among those of a larger one.
    """
    rows = np.arange(start, stop)
    rng = RowRng(seed=seed, scope="sample/review", rows=rows, skew=2)
    labels = review_labels(seed, rows)
    fields = review_fields(rng) | clause_fields(rng, labels)
    is_turning = rng.chance("turning", turning)
    columns = title_column(rng, labels, is_turning), content_column(rng, labels, is_turning)
    templates = zip(*columns, strict=True)
    titles, contents = [], []
    for (title, content), values in zip(templates, zip(*fields.values(), strict=True), strict=True):
        row = dict(zip(fields, values, strict=True))
        titles.append(title.format_map(row))
        contents.append(content.format_map(row))
    return Reviews(titles, contents, labels, is_turning.astype(np.int8))


def review_labels(seed: int, rows: Integers) -> NDArray[np.int8]:
    """A coin for each pair of rows: the first row gets one side, the second the other."""
    coins = uniform_below(random_bits(stream_key(seed, "sample/review/label"), rows // 2), 2)
    return (coins ^ (rows % 2)).astype(np.int8)


def review_fields(rng: RowRng) -> Columns:
    """What a review mentions besides the product's parts."""
    product = rng.below("product", len(PRODUCTS))
    heads = rng.pick("brand/head", TEXTS["brand_heads"])
    endings = rng.pick("brand/ending", TEXTS["brand_endings"])
    counts = rng.pick("count", WORDS["counts"])
    return {
        "noun": rng.pick_of("noun", [p.nouns for p in PRODUCTS], product),
        "brand": [head + ending for head, ending in zip(heads, endings, strict=True)],
        "relative": rng.pick("relative", TEXTS["relatives"]),
        "month": rng.pick("month", WORDS["months"]),
        "weekday": rng.pick("weekday", TEXTS["weekdays"]),
        "nth": rng.pick("nth", TEXTS["ordinals"]),
        "count": counts,
        "count_": [count.capitalize() for count in counts],
        "price": strings(rng.between("price", 9, 180)),
    }


def clause_fields(rng: RowRng, labels: NDArray[np.int8]) -> Columns:
    """Clauses about the product's parts in random order: own0.. agree with the label, opp0.. don't.

    No part is mentioned twice: the first half of the parts is for the reviewer's own opinion.
    """
    product = rng.below("product", len(PRODUCTS)).tolist()
    order = random_order(rng, "parts", PARTS)
    choice = rng.bits("clauses", PARTS)
    fields: Columns = {}
    for number in range(PARTS):
        is_own = number < PARTS // 2
        side = labels if is_own else 1 - labels
        parts = zip(product, order[:, number].tolist(), side.tolist(), strict=True)
        options = [PRODUCTS[p].parts[part].clauses[s] for p, part, s in parts]
        picks = uniform_below(choice[:, number], [len(clauses) for clauses in options]).tolist()
        clauses = [some[pick] for some, pick in zip(options, picks, strict=True)]
        name = ("own" if is_own else "opp") + str(number % (PARTS // 2))
        fields[name] = clauses
        fields[f"{name}_"] = [clause[0].upper() + clause[1:] for clause in clauses]
    return fields


def title_column(rng: RowRng, labels: NDArray[np.int8], turning: NDArray[np.bool_]) -> list[str]:
    """A template for each title; those of turning reviews never tell the verdict."""
    telling = rng.chance("title/telling", TELLING_TITLES) & ~turning
    return rng.pick_of("title", TITLES, np.where(telling, labels, 2))


def content_column(rng: RowRng, labels: NDArray[np.int8], turning: NDArray[np.bool_]) -> list[str]:
    """A template for each content, as its plan says; no wording is used twice in a review."""
    plans = rng.pick_of("plan", PLANS, turning.astype(np.int64))
    orders = {
        kind: random_order(rng, f"wordings/{kind}", len(options)).tolist()
        for kind, options in wordings(0).items()
    }
    return [
        content_template(plan, wordings(label), {kind: orders[kind][row] for kind in orders})
        for row, (plan, label) in enumerate(zip(plans, labels.tolist(), strict=True))
    ]


def wordings(label: int) -> dict[str, Words]:
    """The wordings of each kind of sentence in a plan; only verdicts depend on the label."""
    kinds = ("context", "own", "concession", "turn", "denial")
    return {kind: TEXTS[kind] for kind in kinds} | {"verdict": VERDICTS[label]}


def content_template(
    plan: list[str], options: dict[str, Words], orders: dict[str, list[int]]
) -> str:
    """The sentences of a plan; the k-th of a kind takes that kind's k-th wording in its order.

    Each {own} and {opp} gets the number of the next clause: {own0}, {own1}, ...
    """
    clauses = {"own": 0, "opp": 0}
    used = dict.fromkeys(options, 0)
    sentences = []
    for kind in plan:
        sentence = options[kind][orders[kind][used[kind]]]
        used[kind] += 1
        for side, number in clauses.items():
            clauses[side] = number + (f"{{{side}" in sentence)
            sentence = sentence.replace(f"{{{side}", f"{{{side}{number}")
        sentences.append(sentence)
    return " ".join(sentences)
