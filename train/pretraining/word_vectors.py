"""Initial word embeddings from the co-occurrence counts of the shards, instead of random ones.

    counts [V, C]    how often a word is 1, 2 or 3 tokens from one of the C most frequent words,
                     weighted 1, 1/2 and 1/3
    PPMI [V, C]      max(0, log p(word, other) / (p(word) p(other))), p(other) smoothed
    vectors [V, H]   U sqrt(S) of the H largest singular values of PPMI = U S V'

What word2vec finds by gradient descent is close to such vectors (Levy & Goldberg 2014, "Neural
word embedding as implicit matrix factorization", section 4); weights and smoothing are those of
Levy, Goldberg & Dagan 2015, "Improving distributional similarity", sections 3.1 and 3.2. Most words
are rare, so a model takes hundreds of steps to learn as much about them by itself.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.common.errors import out_of_memory_in_one_line
from clozeline.pipeline.dataset.manifest import TOKENIZER
from clozeline.pipeline.tokenization.tokenizer import load_tokenizer
from clozeline.train.data.shard_set import ShardSet
from clozeline.train.engine.distributed import World

WINDOW = 3  # tokens on either side
CONTEXTS = 4096  # words that others are counted with
MOST_COUNTS = 1 << 28  # entries of the table of counts: 1 GB
MOST_TOKENS = 1 << 24  # read; twice as many gain nothing (docs/manual/speedrun.md)
SLAB = 1 << 18  # tokens at once
SMOOTHING = 0.75  # exponent of the frequencies of contexts
ITERATIONS, OVERSAMPLES = 2, 32  # of the random projection

Ids = NDArray[np.int64]


def word_vectors(shards: ShardSet, size: int, *, seed: int) -> Tensor:
    """The vectors [V, H], H at most `size`, float32; zeros for special tokens and unseen words.

    Counted are whole examples from the first shard on, of about 17 million tokens. Raises what
    `ShardSet.read` raises.
    """
    frequencies = np.array(shards.manifest.token_counts)
    width = min(CONTEXTS, MOST_COUNTS // len(frequencies), np.count_nonzero(frequencies))
    contexts = np.argsort(-frequencies, kind="stable")[:width]
    counts = _neighbour_counts(shards, contexts)
    ppmi = _ppmi(torch.from_numpy(counts))
    return _left_singular_vectors(ppmi, size, seed=seed) * ppmi.any(1, keepdim=True)


@torch.no_grad()
def start_at_word_vectors(
    model: BertForPretraining, shards: ShardSet, world: World, *, seed: int
) -> None:
    """Set the embeddings of the words that have vectors, and the rows of an untied decoder.

    Their standard deviation is `initializer_range`; what has no vector stays as it is.
    Rank 0 reads the shards for all processes. Raises what `word_vectors` raises, and
    OutOfMemoryError.
    """

    def vectors_read() -> dict[str, Tensor]:
        with out_of_memory_in_one_line("the word vectors", "give --no-word-vectors"):
            return {"": word_vectors(shards, model.config.hidden_size, seed=seed)}

    stored = world.tensors_from_main(vectors_read)
    rows = stored[""].any(1).nonzero().squeeze(1)
    vectors = stored[""][rows]
    if not len(rows):
        return  # no two words are near each other more often than by chance
    scale = model.config.initializer_range / vectors.std()
    decoder = model.mlm_head.decoder
    for module in (model.encoder.embeddings.word_embeddings, decoder):
        if module is not None:
            module.weight[rows, : vectors.shape[1]] = vectors * scale


def _neighbour_counts(shards: ShardSet, contexts: Ids) -> NDArray[np.float32]:
    """The counts [V, C] of words near contexts; special tokens are near nothing."""
    words, width = shards.manifest.vocab_size, len(contexts)
    column = np.full(words, -1)
    column[contexts] = np.arange(width)
    counts = np.zeros(words * width, np.float32)
    for ids, sequence in _slabs(shards):
        for distance in range(1, WINDOW + 1):
            is_near = sequence[distance:] == sequence[:-distance]
            left, right = ids[:-distance][is_near], ids[distance:][is_near]
            for word, other in ((left, column[right]), (right, column[left])):
                pairs = (word * width + other)[other >= 0]
                np.add.at(counts, pairs, np.float32(1 / distance))
    return counts.reshape(words, width)


def _slabs(shards: ShardSet) -> Iterator[tuple[Ids, Ids]]:
    """Ids of words, and which sequence of words between special tokens each belongs to."""
    is_special = load_tokenizer(shards.folder / TOKENIZER).is_special
    read, size = 0, max(1, SLAB // shards.max_seq_length)
    for number, rows in enumerate(shards.shard_rows):
        if not rows:
            continue
        examples = shards.read(number)
        for start in range(0, rows, size):
            ids = examples.slice(start, start + size).unmasked().input_ids.values
            is_word = ~is_special[ids]
            yield ids[is_word].astype(np.int64), np.cumsum(~is_word)[is_word]
            read += len(ids)
            if read >= MOST_TOKENS:
                return


def _ppmi(counts: Tensor) -> Tensor:
    """Positive pointwise mutual information [V, C] in nats; 0 for pairs that never occur.

    In place: the table may be a gigabyte.
    """
    words, contexts = counts.sum(1, keepdim=True), counts.sum(0) ** SMOOTHING
    counts.div_(words).div_(contexts / contexts.sum())
    return counts.log_().nan_to_num_(0.0).clamp_(min=0.0)


def _left_singular_vectors(matrix: Tensor, rank: int, *, seed: int) -> Tensor:
    """U sqrt(S) of the largest singular values of a matrix [V, C], at most `rank` of them.

    By random projection, with two power iterations (Halko, Martinsson & Tropp 2011, algorithm 4.4).
    """
    generator = torch.Generator().manual_seed(seed)
    columns = min(rank + OVERSAMPLES, *matrix.shape)
    basis = torch.randn(matrix.shape[1], columns, generator=generator)
    for _ in range(ITERATIONS):
        basis = torch.linalg.qr(matrix @ basis).Q
        basis = torch.linalg.qr(matrix.T @ basis).Q
    left, values, _ = torch.linalg.svd(matrix @ basis, full_matrices=False)
    vectors: Tensor = left[:, :rank] * values[:rank].sqrt()
    return vectors
