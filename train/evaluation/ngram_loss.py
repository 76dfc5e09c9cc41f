"""What n-grams reach on the masks of a data set: a yardstick for the masked-LM loss.

The masked token w is predicted from both sides, with l its left and r its right neighbours:

    p(w | l r)  is proportional to  p(w | l) p(w | r) / p(w)

which is exact if the two sides are independent given w. A neighbour that is masked itself is
unknown. The two models are Kneser-Ney trigrams (`ngrams.py`), one of them over reversed text;
their counts come from the training shards.

A model also sees the token at a masked position: `mask_token_prob` of them are [MASK], some are
random and the rest are kept. `trigram_with_input_loss` uses that too, by Bayes' rule:

    p(w | l r, x)  is proportional to  p(w | l r) (keep [w = x] + random / number of random tokens)
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.dataset.schema import Examples, concatenate_examples
from clozeline.pipeline.examples.masks import MaskRules
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.evaluation.ngrams import Floats, Ints, Tokens, TrigramModel

QUERIES = 64  # at once: [64, V] float32 stays near the processor


@dataclass(frozen=True, kw_only=True)
class NgramLosses:
    """Mean cross-entropies over the masked tokens, in nats; `ngram_tokens` were counted."""

    ngram_tokens: int
    bigram_loss: float
    trigram_loss: float
    trigram_with_input_loss: float

    def to_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """The losses as lines of text."""
        return [
            f"n-grams of {self.ngram_tokens:,} tokens, from the visible neighbours on both sides",
            f"  bigram            {self.bigram_loss:6.3f}",
            f"  trigram           {self.trigram_loss:6.3f}",
            f"  trigram and input {self.trigram_with_input_loss:6.3f}"
            "   also reads the token at the masked position, as the model does",
        ]


@dataclass(frozen=True)
class _Queries:
    """The masked positions of some examples, each field [P]; a neighbour is -1 if it is masked."""

    labels: Ints
    inputs: Ints  # what stands at the position
    left: tuple[Ints, Ints]  # the neighbour, and the one beyond it
    right: tuple[Ints, Ints]

    @classmethod
    def of(cls, examples: Examples) -> "_Queries":
        """Rows end in [SEP] and begin with [CLS], so neighbours can be taken across rows."""
        original, rows = examples.unmasked().input_ids, examples.masked_lm_positions
        starts = np.repeat(original.offsets[:-1], rows.lengths)
        at = starts + rows.values
        visible = original.values.astype(np.int64)
        visible[at] = -1
        left_far, left, right, right_far = (np.roll(visible, shift)[at] for shift in (2, 1, -1, -2))
        return cls(
            labels=examples.masked_lm_labels.values.astype(np.int64),
            inputs=examples.input_ids.values[at].astype(np.int64),
            left=(left, left_far),
            right=(right, right_far),
        )


def ngram_losses(folder: Path, *, limit: int | None, max_tokens: int) -> NgramLosses:
    """Count n-grams in the first `max_tokens` training tokens; predict masked validation tokens.

    `limit` takes the first validation examples only.
    Raises InputError as `ShardSet` does.
    """
    train, validation = ShardSet(folder, "train"), ShardSet(folder, "validation")
    tokenizer = load_tokenizer(validation.folder / TOKENIZER)
    rules = MaskRules.of(validation.manifest.config, tokenizer)
    queries = _Queries.of(_held_out(validation, limit))
    if not len(queries.labels):
        raise InputError(f"{folder}: the validation examples have no masked token.")
    tokens = _training_tokens(train, max_tokens)
    size = tokenizer.vocab_size
    before = TrigramModel(tokens, *queries.left, vocab_size=size)
    after = TrigramModel(tokens[::-1], *queries.right, vocab_size=size)
    sums = np.zeros(3)
    for start in range(0, len(queries.labels), QUERIES):
        part = slice(start, start + QUERIES)
        sums += _losses(queries, part, before, after, rules)
    bigram, trigram, with_input = (sums / len(queries.labels)).tolist()
    return NgramLosses(
        ngram_tokens=len(tokens),
        bigram_loss=bigram,
        trigram_loss=trigram,
        trigram_with_input_loss=with_input,
    )


def _losses(
    queries: _Queries, part: slice, before: TrigramModel, after: TrigramModel, rules: MaskRules
) -> NDArray[np.float64]:
    """Summed cross-entropy of the bigram, the trigram, and the trigram with the input, [3]."""
    labels, inputs = queries.labels[part], queries.inputs[part]
    left, right = ([side[part] for side in both] for both in (queries.left, queries.right))
    found = []
    for order in (2, 3):
        scores = before.probabilities(*left, order=order) / before.unigram
        scores *= after.probabilities(*right, order=order)
        scores[:, rules.is_special] = 0  # a special token is never masked
        found.append(_cross_entropy(scores, labels))
    seen = np.flatnonzero(inputs != rules.mask_id)
    likelihood = np.full_like(scores[seen], rules.random_token_prob / len(rules.replacement_ids))
    keep = 1 - rules.mask_token_prob - rules.random_token_prob
    likelihood[np.arange(len(seen)), inputs[seen]] += keep
    scores[seen] *= likelihood
    return np.array([*found, _cross_entropy(scores, labels)])


def _cross_entropy(scores: Floats, labels: Ints) -> float:
    """Sum of the negative log-probabilities of labels [B], from unnormalized scores [B, V]."""
    totals = scores.sum(1, dtype=np.float64)
    return float(-np.log(scores[np.arange(len(labels)), labels] / totals).sum())


def _read(shards: ShardSet) -> Iterator[Examples]:
    for shard in range(len(shards.entries)):
        yield shards.read(shard)


def _held_out(shards: ShardSet, limit: int | None) -> Examples:
    """The first `limit` examples, or all: those that `evaluation_batches` reads."""
    parts, rows = [], 0
    for examples in _read(shards):
        parts.append(examples)
        rows += len(examples)
        if limit is not None and rows >= limit:
            break
    return concatenate_examples(parts).slice(0, min(rows, limit or rows))


def _training_tokens(shards: ShardSet, max_tokens: int) -> Tokens:
    """The original tokens of the first examples, row after row, [CLS] and [SEP] included."""
    parts, count = [], 0
    for examples in _read(shards):
        parts.append(examples.unmasked().input_ids.values)
        count += len(parts[-1])
        if count >= max_tokens:
            break
    return np.concatenate(parts)[:max_tokens]
