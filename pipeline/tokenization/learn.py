"""Text to a vocabulary, the same one on every machine; BPE by the trainer of `tokenizers`.

    learn_vocabulary(texts, model="bpe", vocab_size=50_368)  ->  Tokenizer

wordpiece   BERT's (Devlin et al. 2018): BertNormalizer, words and marks, "##" inside of words
bpe         byte-level BPE (Radford et al. 2019), as ModernBERT has it (Warner et al. 2024): NFC,
            GPT-2's words, no unknown characters

The most frequent pair of neighbours is merged first (Sennrich et al. 2016), of equal ones that of
the older tokens, since the library's trainer of BPE sorts its alphabet. It learns WordPiece, too,
from words in which each token is a letter: the library's own trainer numbers "##..." in the order
of a hash table, which is another one in each process. That of Unigram adds scores in such an order;
published Unigram vocabularies can be adopted.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.tokenization.documents import lines_of
from clozeline.pipeline.tokenization.options import Model
from clozeline.pipeline.tokenization.read_vocabulary import read_spec
from clozeline.pipeline.tokenization.tokenizer import PunktJson, Tokenizer, named_tokenizer
from clozeline.pipeline.tokenization.vocabulary import (
    CONTINUATION,
    SPECIAL_TOKENS,
    Normalization,
    TokenizerSpec,
)

MIN_COUNT = 2  #: a pair that is rarer is not merged; the default for BPE is 0
AT_ONCE = 1000  #: times that a word is in one text: the library needs much memory for a long one

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
    normalization = Normalization.of(cased=cased, strip_accents=strip_accents)
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


def _learn_bpe(
    lines: Iterator[list[str]], vocab_size: int
) -> tuple[list[str], Normalization | TokenizerSpec]:
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
    for line in chain.from_iterable(lines):
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
    # BERT's pre-tokenizer leaves no "#" beside others, so no two rows of letters spell one token.
    letters = map(chr, chain(range(0x21, 0xD800), range(0xE000, 0x110000)))  # all after the space
    letter_of = dict(zip(tokens, letters, strict=False))
    spelled = [
        "".join(map(letter_of.__getitem__, (word[0], *(CONTINUATION + c for c in word[1:]))))
        for word in kept
    ]
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocab_size, 0),
        min_frequency=MIN_COUNT,
        initial_alphabet=list(letter_of.values()),
        show_progress=False,
    )
    library.train_from_iterator(_repeated(spelled, kept.values()), trainer)
    token_of = {letter: token for token, letter in letter_of.items()}
    ids = library.get_vocab()
    for merged in sorted(ids, key=ids.__getitem__)[len(tokens) :]:
        first, *others = map(token_of.__getitem__, merged)
        tokens.append(first + "".join(part.removeprefix(CONTINUATION) for part in others))
    return tokens


def _repeated(words: Sequence[str], numbers: Iterable[int]) -> Iterator[str]:
    """Texts in which each word occurs as often as its number says."""
    for word, number in zip(words, numbers, strict=True):
        for done in range(0, number, AT_ONCE):
            yield f"{word} " * min(AT_ONCE, number - done)
