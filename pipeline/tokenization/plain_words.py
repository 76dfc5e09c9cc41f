"""Words of ASCII to the pieces that BPE and Unigram make of them, thousands at once.

    [" no", " not"]  ->  columns of characters    ->  ids of all words, [[7], [7, 3]]
                            " " " "
                            "n" "n"
                            "o" "o"
                                "t"

The library does this word by word; here each step is NumPy's, over all words of a chunk. **The ids
are the library's**: the same comparisons in the same order, and for Unigram the same additions of
the same float64 scores.

Unigram (Kudo 2018): the best path to each position of a word, from left to right. Pieces come from
a trie; of equal paths the first one found stays, which is that of the longest last piece.
BPE (Sennrich et al. 2016): the pair of lowest rank is merged, of equal ones the leftmost; one pair
of each word at a time.

A word with a character that is not a piece by itself is left to the library, and so is a model with
other steps. L characters, N words of a chunk, V tokens.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.ragged import Ragged, offsets_of
from clozeline.pipeline.tokenization.cut_words import MAX_CHARACTERS, Cuts
from clozeline.pipeline.tokenization.pair_table import PairTable
from clozeline.pipeline.tokenization.tokenizer import Tokenizer

Characters = NDArray[np.uint8]  # [L, N], 0 after the end of a word
Rows = NDArray[np.int64]

WORDS_AT_ONCE = 1 << 13  # their columns stay in the processor's cache
POSITION_BITS = 6
NEVER = np.iinfo(np.int64).max  # the rank of a pair that is not merged
#: Settings of models that make no difference to plain words; others do unless they are null.
WITHOUT_EFFECT = {"type", "vocab", "merges", "unk_id", "unk_token", "fuse_unk", "byte_fallback"}


class PlainWords:
    """Encodes plain words, with the space before each, as the library does."""

    def __init__(self, tokenizer: Tokenizer, cuts: Cuts) -> None:
        # The library's own form: its scores are read exactly as it has them.
        model, mark = json.loads(tokenizer.library.to_str())["model"], tokenizer.mark
        self._is_reserved, self._always_space = tokenizer.is_reserved, not cuts.at_marks
        self._pieces: _Unigram | _Bpe | None = None
        if any(value for name, value in model.items() if name not in WITHOUT_EFFECT):
            return  # dropout, affixes, ignore_merges
        if model["type"] == "Unigram":
            self._pieces = _Unigram(model, mark)
        elif model["type"] == "BPE":
            self._pieces = _Bpe(model, mark)

    def encode(self, words: Sequence[str]) -> tuple[Ragged, NDArray[np.bool_]]:
        """The ids of N words, and which of the words the library has to encode, bool [N].

        Those have any ids: of a character that is not a piece, or that spell a special token.
        """
        left = np.ones(len(words), np.bool_)
        if self._pieces is None or not words:
            return Ragged(np.zeros(0, np.uint32), np.zeros(len(words) + 1, np.int64)), left
        if self._always_space:
            words = [word if word[0] == " " else f" {word}" for word in words]
        ids, lengths, order = [], [], []
        for rows, characters in _columns(words):
            found, counts = self._pieces.encode(characters)
            is_known = self._pieces.is_piece[characters].all(axis=0)
            spelled = np.logical_or.reduceat(self._is_reserved[found], offsets_of(counts)[:-1])
            left[rows] = spelled | ~is_known
            ids.append(found)
            lengths.append(counts)
            order.append(rows)
        in_order = Ragged(np.concatenate(ids), offsets_of(np.concatenate(lengths)))
        return in_order.take(np.argsort(np.concatenate(order))), left


def _columns(words: Sequence[str]) -> Iterator[tuple[Rows, Characters]]:
    """Chunks of words of similar length: their numbers, and their characters."""
    text = np.frombuffer("".join(words).encode("ascii") + bytes(MAX_CHARACTERS), np.uint8)
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    begins, order = offsets_of(lengths)[:-1], np.argsort(lengths, kind="stable")
    for start in range(0, len(words), WORDS_AT_ONCE):
        rows = order[start : start + WORDS_AT_ONCE]
        position = np.arange(lengths[rows[-1]])[:, None]
        characters = text[begins[rows] + position]
        characters[position >= lengths[rows]] = 0
        yield rows, characters


class _Unigram:
    """The pieces of a Unigram model as a trie: its edges, and the piece that ends at each node."""

    def __init__(self, model: dict[str, Any], mark: str) -> None:
        edges: dict[tuple[int, int], int] = {}
        ends = {}
        for i, (piece, score) in enumerate(model["vocab"]):
            text = piece.replace(mark, " ")
            if " " in piece or not text.isascii():
                continue  # not in a plain word
            node = 0
            for character in text.encode():
                node = edges.setdefault((node, character), len(edges) + 1)
            ends[node] = i, score
        self._edges = PairTable(edges)
        self._ids = np.full(len(edges) + 1, -1, np.int32)
        self._scores = np.full(len(edges) + 1, -np.inf)
        for node, (i, score) in ends.items():
            self._ids[node], self._scores[node] = i, score
        self._first = np.array([edges.get((0, code), -1) for code in range(0x80)], np.int32)
        self.is_piece = (self._first >= 0) & (self._ids[self._first] >= 0)
        self.is_piece[0] = True  # after the end of a word

    def encode(self, characters: Characters) -> tuple[NDArray[np.uint32], Rows]:
        """The ids of N words, concatenated, and the number of ids of each."""
        length, words = characters.shape
        scores = np.full((length + 1, words), -np.inf)  # of the best path that ends here
        scores[0] = 0
        pieces = np.zeros((length + 1, words), np.int32)  # its last piece,
        starts = np.zeros((length + 1, words), np.int64)  # and where that begins
        for start in range(length):
            node = self._first[characters[start]]
            word = np.flatnonzero(node >= 0)
            node, score = node[word], scores[start, word]
            for stop in range(start + 1, length + 1):
                path = self._scores[node] + score
                better = np.flatnonzero(path > scores[stop, word])
                at = word[better]
                scores[stop, at], starts[stop, at] = path[better], start
                pieces[stop, at] = self._ids[node[better]]
                if stop == length:
                    break
                node = self._edges[node, characters[stop, word]]
                there = np.flatnonzero(node >= 0)
                if not len(there):
                    break
                node, word, score = node[there], word[there], score[there]
        return _backwards(pieces, starts, (characters > 0).sum(axis=0))


def _backwards(
    pieces: NDArray[np.int32], starts: Rows, stop: Rows
) -> tuple[NDArray[np.uint32], Rows]:
    """The pieces of the paths that end at `stop`, concatenated, and the number of each."""
    steps, word = [], np.arange(len(stop))
    counts = np.zeros(len(stop), np.int64)
    while len(word):
        steps.append((word, pieces[stop, word]))
        counts[word] += 1
        stop = starts[stop, word]
        there = np.flatnonzero(stop)
        word, stop = word[there], stop[there]
    ends = offsets_of(counts)[1:]
    ids = np.empty(ends[-1], np.uint32)
    for back, (word, piece) in enumerate(steps, start=1):
        ids[ends[word] - back] = piece
    return ids, counts


class _Bpe:
    """The merges of a byte-level BPE by the ids of their two tokens."""

    def __init__(self, model: dict[str, Any], mark: str) -> None:
        ids = model["vocab"]
        merges = [(ids[left], ids[right], ids[left + right]) for left, right in model["merges"]]
        self._ranks = PairTable({merge[:2]: rank for rank, merge in enumerate(merges)})
        self._merged = np.array([merged for *_, merged in merges], np.int32)
        spelled = [mark if code == 0x20 else chr(code) for code in range(0x80)]
        self._first = np.array([ids.get(character, -1) for character in spelled], np.int32)
        self.is_piece = self._first >= 0
        self.is_piece[0] = True  # after the end of a word

    def encode(self, characters: Characters) -> tuple[NDArray[np.uint32], Rows]:
        """The ids of N words, concatenated, and the number of ids of each."""
        length, words = characters.shape
        stops = (characters > 0).sum(axis=0)
        symbols = np.maximum(self._first[characters], 0)
        after = np.repeat(np.arange(1, length + 1)[:, None], words, axis=1)  # the next symbol
        before = after - 2
        #: The rank of the pair that begins here, and its position, as one number.
        order = np.full((length, words), NEVER)
        at, word = np.nonzero(characters[1:])
        self._rank(order, at, word, symbols[at, word], symbols[at + 1, word])
        word = np.arange(words)
        while len(word):
            first = order[:, word].min(axis=0)
            there = np.flatnonzero(first != NEVER)
            word, first = word[there], first[there]
            at, rank = first & (1 << POSITION_BITS) - 1, first >> POSITION_BITS
            gone = after[at, word]
            symbol = self._merged[rank]
            symbols[at, word], symbols[gone, word] = symbol, -1
            order[at, word] = order[gone, word] = NEVER
            next_ = after[gone, word]
            after[at, word] = next_
            inside = np.flatnonzero(next_ < stops[word])
            before[next_[inside], word[inside]] = at[inside]
            right = symbols[next_[inside], word[inside]]
            self._rank(order, at[inside], word[inside], symbol[inside], right)
            inside = np.flatnonzero(before[at, word] >= 0)
            previous = before[at[inside], word[inside]]
            left = symbols[previous, word[inside]]
            self._rank(order, previous, word[inside], left, symbol[inside])
        is_there = (symbols >= 0) & (characters > 0)
        return symbols.T[is_there.T].astype(np.uint32), is_there.sum(axis=0)

    def _rank(
        self, order: Rows, at: Rows, word: Rows, left: NDArray[np.int32], right: NDArray[np.int32]
    ) -> None:
        """Write the ranks of pairs that begin at these positions of these words."""
        ranks = self._ranks[left, right].astype(np.int64)
        order[at, word] = np.where(ranks < 0, NEVER, ranks << POSITION_BITS | at)
