"""Text to a vocabulary, the same one on every machine; BPE by the trainer of `tokenizers`.

    learn_vocabulary(texts, model="bpe", vocab_size=50_368)  ->  Tokenizer

wordpiece   BERT's (Devlin et al. 2018): BertNormalizer, words and marks, "##" inside of words
bpe         byte-level BPE (Radford et al. 2019), as ModernBERT has it (Warner et al. 2024): NFC,
            GPT-2's words, no unknown characters

The most frequent pair of neighbours is merged first (Sennrich et al. 2016). In WordPiece **ties go
to the pair of the older tokens**: the library's trainer numbers "##..." in the order of a hash
table, which is another one in each process, and so breaks ties. Its trainer of Unigram adds scores
in such an order, too; published Unigram vocabularies can be adopted.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from heapq import heapify, heappop, heappush
from itertools import pairwise

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.tokenization.documents import lines_of
from clozeline.pipeline.tokenization.options import Model
from clozeline.pipeline.tokenization.tokenizer import PunktJson, Tokenizer, named_tokenizer
from clozeline.pipeline.tokenization.tokenizer_spec import SPECIAL_TOKENS, TokenizerSpec, read_spec
from clozeline.pipeline.tokenization.vocabulary import CONTINUATION, normalization_of

Pair = tuple[int, int]

MIN_COUNT = 2  #: a pair that is rarer is not merged, as by default in the library

# The library's default is 1,000 characters, too few for Chinese; a rarer one makes its word [UNK].
MIN_ALPHABET = 1000
# The library's time grows with the square of a word's length (80,000 times "x": 6 s).
MAX_WORD = 4096  #: characters
LONG_WORD = re.compile(rf"[^ ]{{{MAX_WORD}}}|\s{{{MAX_WORD}}}")  # BPE has words of whitespace
MULTIPLE = 64  #: sizes of matrices that GPUs multiply fast
#: As in ModernBERT's: [MASK] takes the space before it, as the word it stands for does.
ADDED = [*SPECIAL_TOKENS[:-1], AddedToken(SPECIAL_TOKENS[-1], lstrip=True, special=True)]


def learn_vocabulary(
    texts: Iterator[str],
    *,
    model: Model = "wordpiece",
    vocab_size: int,
    cased: bool = False,
    strip_accents: bool | None = None,
    punkt: PunktJson = None,
    alphabet: int = MIN_ALPHABET,
) -> Tokenizer:
    """Learn at most `vocab_size` tokens, special ones first, from the lines of the texts.

    WordPiece includes the `alphabet` most frequent characters; where that is more than
    `vocab_size`, it has more tokens. BPE keeps case and accents, and is filled up to a multiple of
    64 with "[unused0]" and so on. A small text gives fewer tokens. Raises InputError if the text
    has no words, or if `vocab_size` has no room for the 256 bytes of BPE.
    """
    lines = _lines(texts)
    if model != "wordpiece":
        return named_tokenizer("the training text", *_learn_bpe(lines, vocab_size), punkt)
    normalization = normalization_of(cased=cased, strip_accents=strip_accents)
    words = count_words(lines, normalizers.BertNormalizer(**asdict(normalization)))
    room = vocab_size - len(SPECIAL_TOKENS)
    learned = learn_wordpiece(words, vocab_size=room, alphabet=alphabet)
    return named_tokenizer("the training text", [*SPECIAL_TOKENS, *learned], normalization, punkt)


def _lines(texts: Iterable[str]) -> Iterator[list[str]]:
    """The lines of each text, as documents have them, with long words cut."""
    for text in texts:
        lines = lines_of(text)
        if len(text) > MAX_WORD:
            lines = lines_of("\n".join(LONG_WORD.sub("\\g<0>\n", line) for line in lines))
        yield lines


def _learn_bpe(lines: Iterator[list[str]], vocab_size: int) -> tuple[list[str], TokenizerSpec]:
    letters = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(letters) + len(SPECIAL_TOKENS) + 1:
        raise InputError(
            f"--vocab-size {vocab_size} has no room for the 256 bytes of --model bpe; give at "
            "least 300."
        )
    library = tokenizers.Tokenizer(models.BPE())
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=letters, special_tokens=ADDED, show_progress=False
    )
    library.train_from_iterator(lines, trainer)
    known = library.get_vocab_size()
    if known <= len(SPECIAL_TOKENS) + len(letters):
        raise InputError("the training text has no words; give more text.")
    unused = [f"[unused{i}]" for i in range(-known % MULTIPLE)]
    library.add_special_tokens(unused)  # special: text that spells one stays text
    return read_spec(json.loads(library.to_str()), special_tokens=SPECIAL_TOKENS)


def count_words(lines: Iterable[Sequence[str]], normalizer: normalizers.Normalizer) -> Counter[str]:
    """The words of all lines after normalization, as BERT's pre-tokenizer cuts them.

    A chunk between spaces is cut once: a space ends a word whatever is beside it.
    """
    chunks: Counter[str] = Counter()
    for some in lines:
        for line in some:
            chunks.update(line.split(" "))
    pre_tokenize = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for chunk, number in chunks.items():
        for word, _ in pre_tokenize(normalizer.normalize_str(chunk)):
            words[word] += number
    return words


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
