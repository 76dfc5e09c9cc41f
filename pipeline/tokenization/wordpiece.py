"""A WordPiece vocabulary of counted words, the same one on every machine and in every order.

    {"hug": 9, "hugs": 5}  ->  g h s u ##g ##h ...  then  ##ug hug hugs

Pairs of neighbours are merged, the most frequent pair first (Sennrich et al. 2016), until there are
enough tokens. **Ties go to the pair of the older tokens.** The trainer of the library `tokenizers`
merges the same way, but numbers "##..." in the order of a hash table, which is another one in each
process, and so breaks ties.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise

from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from clozeline.pipeline.common.ragged import text_slabs
from clozeline.pipeline.tokenization.vocabulary import CONTINUATION

Pair = tuple[int, int]

MIN_COUNT = 2  #: a pair that is rarer is not merged, as by default in the library
CHARACTERS_PER_CALL = 1 << 20


def count_words(lines: Iterable[Sequence[str]], normalizer: Normalizer) -> Counter[str]:
    """The words of all lines after normalization, as BERT's pre-tokenizer cuts them.

    Chunks between spaces are counted, then normalized, then cut, once for each count: a space ends
    a word whatever is beside it.
    """
    chunks: Counter[str] = Counter()
    for some in lines:
        for line in some:
            chunks.update(line.split(" "))
    pre_tokenize = BertPreTokenizer().pre_tokenize_str
    normalized = _cut(chunks, lambda text: normalizer.normalize_str(text).split(" "))
    return _cut(normalized, lambda text: [word for word, _ in pre_tokenize(text)])


def _cut(chunks: Mapping[str, int], cut: Callable[[str], list[str]]) -> Counter[str]:
    """What chunks are cut into, counted; those of one count are cut together, joined by spaces."""
    by_count = defaultdict(list)
    for chunk, number in chunks.items():
        by_count[number].append(chunk)
    pieces: Counter[str] = Counter()
    for number, listed in by_count.items():
        for some in text_slabs(listed, CHARACTERS_PER_CALL):
            for piece, times in Counter(cut(" ".join(some))).items():
                pieces[piece] += number * times
    return pieces


def learn_wordpiece(words: Mapping[str, int], *, vocab_size: int, alphabet: int) -> list[str]:
    """At most `vocab_size` tokens: characters, continuations, then merged ones by rank.

    Characters are the `alphabet` most frequent ones; all of them are tokens, even where that is
    more than `vocab_size`. Words that have others are unknown, so nothing is learned from them.
    """
    counts: Counter[str] = Counter()
    for word, number in words.items():
        for character in word:
            counts[character] += number
    by_count = sorted(counts, key=lambda character: (-counts[character], character))
    known = frozenset(by_count[:alphabet])
    kept = {word: number for word, number in words.items() if known.issuperset(word)}
    inside = {character for word in kept for character in word[1:]}
    tokens = [*sorted(known), *(CONTINUATION + character for character in sorted(inside))]
    merges = Merges(kept, tokens)
    while len(tokens) < vocab_size and merges.merge_next():
        pass
    return tokens


class Merges:
    """The pairs of neighbours in W words, as numbers of tokens, and where they are.

    Merged pairs are appended to `tokens`, unless another pair became the same token before.
    """

    def __init__(self, words: Mapping[str, int], tokens: list[str]) -> None:
        self._tokens = tokens
        self._ids = ids = {token: i for i, token in enumerate(tokens)}
        self._words = [[ids[w[0]], *(ids[CONTINUATION + c] for c in w[1:])] for w in words]
        self._numbers = list(words.values())
        self._counts: dict[Pair, int] = defaultdict(int)
        #: Words that have the pair, or had it when they were added.
        self._rows: dict[Pair, list[int]] = defaultdict(list)
        for row, (word, number) in enumerate(zip(self._words, self._numbers, strict=True)):
            for pair in pairwise(word):
                self._counts[pair] += number
                self._rows[pair].append(row)
        self._queue = [(-number, pair) for pair, number in self._counts.items()]
        heapify(self._queue)

    def merge_next(self) -> bool:
        """Merge the most frequent pair everywhere; False if none is left that is not rare."""
        while self._queue:
            number, pair = heappop(self._queue)
            now = self._counts[pair]
            if now < MIN_COUNT:
                continue
            if now == -number:
                self._merge(pair)
                return True
            heappush(self._queue, (-now, pair))  # it has become rarer since it was queued
        return False

    def _merge(self, pair: Pair) -> None:
        left, right = (self._tokens[i] for i in pair)
        merged = left + right.removeprefix(CONTINUATION)
        if (new := self._ids.setdefault(merged, len(self._tokens))) == len(self._tokens):
            self._tokens.append(merged)
        changed: set[Pair] = set()
        for row in dict.fromkeys(self._rows.pop(pair)):
            self._merge_in(row, pair, new, changed)
        del self._counts[pair]  # which is 0 now, but not on the way through "aaa"
        for other in changed:
            heappush(self._queue, (-self._counts[other], other))

    def _merge_in(self, row: int, pair: Pair, new: int, changed: set[Pair]) -> None:
        """Merge a pair in one word, from left to right, and count its neighbours anew."""
        word, number, counts = self._words[row], self._numbers[row], self._counts
        at = 0
        while at < len(word) - 1:
            if (word[at], word[at + 1]) != pair:
                at += 1
                continue
            word[at : at + 2] = [new]
            beside = []
            if at:
                counts[word[at - 1], pair[0]] -= number
                beside.append((word[at - 1], new))
            if at + 1 < len(word):
                counts[pair[1], word[at + 1]] -= number
                beside.append((new, word[at + 1]))
            for other in beside:
                counts[other] += number
                self._rows[other].append(row)
                changed.add(other)
            at += 1
