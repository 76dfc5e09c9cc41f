"""Which words of a text matter to a classifier, by deletion.

    "it broke after two days"   negative 97 %
    "it after two days"         negative 41 %   ->  "broke" has an effect of 0.56

The effect of a word is the probability of the predicted class minus that without the word (leave
one out, Li et al. 2016, "Understanding neural networks through representation erasure").
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from clozeline.train.finetuning.classifier import Classifier
from clozeline.train.labelled.encoding import ends_of
from clozeline.train.labelled.rows import Texts

WORDS = 200  # measured per text, where the classifier reads it; each is one more row to classify
WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class WordEffect:
    """A word as it is written, the space before it, and its effect; None beyond WORDS words."""

    space: str
    word: str
    effect: float | None
    part: int = 0  # 1: in the second text of a pair


def word_effects(classifier: Classifier, texts: Sequence[str], *, label: int) -> list[WordEffect]:
    """The effect of each word on the probability of class number `label`, in order."""
    parts = [list(WORD.finditer(text)) for text in texts]
    measured = [
        (part, match)
        for part, words in enumerate(parts)
        for match in chain(*ends_of(words, WORDS, classifier.truncate))
    ]
    rows = [texts, *(_without(texts, part, match) for part, match in measured)]
    probabilities = classifier.classify(Texts.of(rows))[:, label]
    places = [(part, match.start()) for part, match in measured]
    effects = dict(zip(places, (probabilities[0] - probabilities[1:]).tolist(), strict=True))
    found = []
    for part, words in enumerate(parts):
        end = 0
        for match in words:
            effect = effects.get((part, match.start()))
            found.append(WordEffect(texts[part][end : match.start()], match[0], effect, part))
            end = match.end()
    return found


def _without(texts: Sequence[str], part: int, match: re.Match[str]) -> list[str]:
    text = texts[part]
    changed = (text[: match.start()] + text[match.end() :]).strip()
    return [*texts[:part], changed, *texts[part + 1 :]]
