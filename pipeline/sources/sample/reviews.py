"""Product reviews with a sentiment that takes some reading: row by row, from a seed.

    product, parts, label   kettle: lid, spout, ...          1 (positive)
    plan                    context, turn                    (drawn)
    review                  "My Velmora kettle", "I use it nearly every day. Although the lid
                            jams, the spout pours neatly."

Most reviews speak plainly, and a bag of words will do. In the others praise and blame are equally
many, and only "although", "but" and "not so" tell which side the writer is on.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.common.counter_rng import random_bits, stream_key, uniform_below
from pipeline.sources.sample import opinions
from pipeline.sources.sample import words as sample_words
from pipeline.sources.sample.article_fields import Columns, Draw, Integers, drawn_order, strings

#: share of the reviews in which the order of things decides
TURNING = 0.25
#: share of the plain reviews whose title tells the verdict
TELLING_TITLES = 0.6
#: parts a product has; each is spoken of once at most
PARTS = 6


@dataclass(frozen=True)
class Reviews:
    """Columns of equal length; labels are int8, 1 positive and 0 negative."""

    titles: list[str]
    contents: list[str]
    labels: NDArray[np.int8]


def make_reviews(seed: int, start: int, stop: int) -> Reviews:
    """Reviews start..stop-1 of a seed; review i is the same in every range that holds it.

    Reviews 2j and 2j + 1 have different labels, so every even range is balanced.
    """
    rows = np.arange(start, stop)
    draw = Draw(seed=seed, scope="sample/review", rows=rows, skew=2)
    labels = review_labels(seed, rows)
    facts = review_facts(draw) | clause_facts(draw, labels)
    turning = draw.chance("turning", TURNING)
    columns = title_column(draw, labels, turning), content_column(draw, labels, turning)
    templates = zip(*columns, strict=True)
    titles, contents = [], []
    for (title, content), values in zip(templates, zip(*facts.values(), strict=True), strict=True):
        row = dict(zip(facts, values, strict=True))
        titles.append(title.format_map(row))
        contents.append(content.format_map(row))
    return Reviews(titles, contents, labels)


def review_labels(seed: int, rows: Integers) -> NDArray[np.int8]:
    """A coin for each pair of rows: the first of the pair shows it, the second its other side."""
    coins = uniform_below(random_bits(stream_key(seed, "sample/review/label"), rows // 2), 2)
    return (coins ^ (rows % 2)).astype(np.int8)


def review_facts(draw: Draw) -> Columns:
    """What a review speaks of beside the product's parts."""
    product = draw.below("product", len(opinions.PRODUCTS))
    heads = draw.pick("brand/head", opinions.BRAND_HEADS)
    endings = draw.pick("brand/ending", opinions.BRAND_ENDINGS)
    counts = draw.pick("count", sample_words.COUNTS)
    return {
        "noun": draw.pick_of("noun", [p.nouns for p in opinions.PRODUCTS], product),
        "brand": [head + ending for head, ending in zip(heads, endings, strict=True)],
        "relative": draw.pick("relative", opinions.RELATIVES),
        "month": draw.pick("month", sample_words.MONTHS),
        "weekday": draw.pick("weekday", opinions.WEEKDAYS),
        "nth": draw.pick("nth", opinions.ORDINALS),
        "count": counts,
        "count_": [count.capitalize() for count in counts],
        "price": strings(draw.between("price", 9, 180)),
    }


def clause_facts(draw: Draw, labels: NDArray[np.int8]) -> Columns:
    """Clauses about the product's parts in drawn order: own0.. agree with the label, opp0.. don't.

    No part is spoken of twice: the first half of the parts is for one's own side.
    """
    product = draw.below("product", len(opinions.PRODUCTS)).tolist()
    order = drawn_order(draw, "parts", PARTS)
    choice = draw.words("clauses", PARTS)
    facts: Columns = {}
    for lane in range(PARTS):
        side = labels if lane < PARTS // 2 else 1 - labels
        parts = zip(product, order[:, lane].tolist(), side.tolist(), strict=True)
        options = [opinions.PRODUCTS[p].parts[part].clauses[s] for p, part, s in parts]
        picks = uniform_below(choice[:, lane], [len(clauses) for clauses in options]).tolist()
        clauses = [some[pick] for some, pick in zip(options, picks, strict=True)]
        name = ("own" if lane < PARTS // 2 else "opp") + str(lane % (PARTS // 2))
        facts[name] = clauses
        facts[f"{name}_"] = [clause[0].upper() + clause[1:] for clause in clauses]
    return facts


def title_column(draw: Draw, labels: NDArray[np.int8], turning: NDArray[np.bool_]) -> list[str]:
    """A template for each title; those of turning reviews never tell the verdict."""
    telling = draw.chance("title/telling", TELLING_TITLES) & ~turning
    tables = (*opinions.TITLES, opinions.NEUTRAL_TITLES)
    return draw.pick_of("title", tables, np.where(telling, labels, 2))


def content_column(draw: Draw, labels: NDArray[np.int8], turning: NDArray[np.bool_]) -> list[str]:
    """A template for each content, as its plan says; no wording is used twice in a review."""
    plans = draw.pick_of(
        "plan", (opinions.PLAIN_PLANS, opinions.TURNING_PLANS), turning.astype(np.int64)
    )
    orders = {
        kind: drawn_order(draw, f"wordings/{kind}", len(options)).tolist()
        for kind, options in wordings(0).items()
    }
    return [
        content_template(plan, wordings(label), {kind: orders[kind][row] for kind in orders})
        for row, (plan, label) in enumerate(zip(plans, labels.tolist(), strict=True))
    ]


def wordings(label: int) -> dict[str, tuple[str, ...]]:
    """The wordings of each kind of sentence in a plan; only verdicts depend on the label."""
    return {
        "context": opinions.CONTEXT,
        "own": opinions.OWN,
        "concession": opinions.CONCESSION,
        "turn": opinions.TURNS,
        "denial": opinions.DENIALS,
        "verdict": opinions.VERDICTS[label],
    }


def content_template(
    plan: list[str], options: dict[str, tuple[str, ...]], orders: dict[str, list[int]]
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
