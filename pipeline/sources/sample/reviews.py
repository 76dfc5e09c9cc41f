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

import tomllib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.counter_rng import (
    random_bits,
    stream_key,
    uniform_below,
    with_probability,
)
from clozeline.pipeline.sources.sample.articles import (
    FOLDER,
    Columns,
    Integers,
    RowRng,
    Words,
    capitalized,
    filled,
    picks,
)

#: fraction of the reviews in which the order of the clauses decides
TURNING = 0.1
#: fraction of the plain reviews whose title tells the verdict
TELLING_TITLES = 0.6
#: most clauses of the reviewer's own opinion, and of the other side: one for each part at most
OWN, OPPOSITE = 3, 3
#: words drawn for each claim and for the title
CLAIM_WORDS = {"adjective": 3, "adverb": 1, "name": 1, "verb": 1}
#: which words of praise and blame a review may use
HALVES = {"all": slice(None), "even": slice(0, None, 2), "odd": slice(1, None, 2)}
#: The sentences and words, in the notation that the file explains.
TEXTS: dict[str, Any] = tomllib.loads((FOLDER / "reviews.toml").read_text("utf-8"))
#: "nouns" and "parts" of each product.
PRODUCTS: list[dict[str, Words]] = TEXTS["products"]
#: Kinds of sentences in order, for reviews without a turn and with one.
PLANS = [[plan.split() for plan in TEXTS["plans"][kind]] for kind in ("plain", "turning")]
#: Titles that are neutral (0) or tell the verdict (1).
TITLES = [TEXTS["titles"][kind] for kind in ("neutral", "telling")]
#: Words of negative (0) and positive (1) reviewers: "adjectives", "verdicts", ...
SIDES: list[dict[str, Words]] = TEXTS["sides"]


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
    rng = RowRng(seed=seed, scope="sample/review", rows=rows)
    # A coin for each pair of rows: the first row gets one side, the second the other.
    coins = uniform_below(random_bits(stream_key(seed, "sample/review/label"), rows // 2), 2)
    labels = (coins ^ (rows % 2)).astype(np.int8)
    is_turning = with_probability(rng.bits("turning")[:, 0], turning)
    # The titles of turning reviews never tell the verdict.
    telling = with_probability(rng.bits("title/telling")[:, 0], TELLING_TITLES) & ~is_turning
    titles = rng.pick_of("title", TITLES, telling.astype(np.int64))
    fields = review_fields(rng, labels, words)
    contents = content_column(rng, labels, is_turning)
    return Reviews(
        filled(titles, fields), filled(contents, fields), labels, is_turning.astype(np.int8)
    )


def review_fields(rng: RowRng, labels: NDArray[np.int8], half: str) -> Columns:
    """What a review mentions, and clauses in random order of the product's parts.

    own0, own1, ... agree with the label and take the parts from the front; opp0, ... do not, and
    take them from the back: so no part is mentioned twice.
    """
    product = rng.between("product", 0, len(PRODUCTS))
    heads = rng.pick("brand/head", TEXTS["brand_heads"])
    endings = rng.pick("brand/ending", TEXTS["brand_endings"])
    nouns = rng.pick_of("noun", [some["nouns"] for some in PRODUCTS], product)
    fields = {
        "noun": nouns,
        "brand": [head + ending for head, ending in zip(heads, endings, strict=True)],
        "relative": rng.pick("relative", TEXTS["relatives"]),
        **picks(rng, count="counts", month="months"),
        **(of_title := opinions(rng, "title", labels, half)),
        "adjective0_": capitalized(of_title["adjective0"]),
    }
    parts = rng.order("parts", OWN + OPPOSITE).tolist()
    clauses = [(f"own{n}", n, labels) for n in range(OWN)]
    clauses += [(f"opp{n}", OWN + n, 1 - labels) for n in range(OPPOSITE)]
    for name, place, label in clauses:
        subjects = rng.evenly().pick(f"{name}/subject", TEXTS["subjects"])
        claims = rng.evenly().pick(f"{name}/claim", TEXTS["claims"])
        pairs = zip(product.tolist(), parts, strict=True)
        of_clause = {"noun": nouns, "part": [PRODUCTS[p]["parts"][row[place]] for p, row in pairs]}
        of_clause |= opinions(rng, name, label, half)
        templates = [f"{subject} {claim}" for subject, claim in zip(subjects, claims, strict=True)]
        fields[name] = filled(templates, of_clause)
        fields[f"{name}_"] = capitalized(fields[name])
    return fields


def opinions(rng: RowRng, name: str, label: NDArray[np.int8], half: str) -> Columns:
    """Different words of each kind from each row's side: adjective0, adjective1, ..."""
    fields: Columns = {}
    for kind, number in CLAIM_WORDS.items():
        tables = [side[f"{kind}s"][HALVES[half]] for side in SIDES]
        size = len(tables[0])  # as many on both sides
        chosen = distinct(rng.options(f"{name}/{kind}", [[size] * number]), size)
        for n, column in enumerate(chosen.T.tolist()):
            pairs = zip(label.tolist(), column, strict=True)
            fields[f"{kind}{n}"] = [tables[side][word] for side, word in pairs]
    return fields


def distinct(chosen: Integers, size: int) -> Integers:
    """Each row's numbers, int64 [rows, width]; one that occurred before becomes the next free."""
    for column in range(1, chosen.shape[1]):
        for _ in range(column):
            taken = (chosen[:, :column] == chosen[:, column, None]).any(1)
            chosen[:, column] = (chosen[:, column] + taken) % size
    return chosen


def content_column(rng: RowRng, labels: NDArray[np.int8], turning: NDArray[np.bool_]) -> list[str]:
    """A template for each content, as its plan says; no wording is used twice in a review."""
    plans = rng.pick_of("plan", PLANS, turning.astype(np.int64))
    kinds = {kind for some in PLANS for plan in some for kind in plan}
    wordings = [{kind: TEXTS.get(kind, side["verdicts"]) for kind in kinds} for side in SIDES]
    orders = {kind: rng.order(f"wordings/{kind}", len(wordings[0][kind])) for kind in kinds}
    listed = {kind: order.tolist() for kind, order in orders.items()}
    templates = []
    for row, (plan, label) in enumerate(zip(plans, labels.tolist(), strict=True)):
        order = {kind: iter(listed[kind][row]) for kind in kinds}
        own = opposite = 0
        sentences = []
        for kind in plan:
            text = wordings[label][kind][next(order[kind])]
            sentences.append(
                text.replace("{own", f"{{own{own}").replace("{opp", f"{{opp{opposite}")
            )
            own, opposite = own + ("{own" in text), opposite + ("{opp" in text)
        templates.append(" ".join(sentences))
    return templates
