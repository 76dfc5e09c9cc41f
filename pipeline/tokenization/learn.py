"""Text to a vocabulary; BPE by the trainer of the `tokenizers` library.

    learn_vocabulary(texts, model="bpe", vocab_size=50_368)  ->  Tokenizer

wordpiece   BERT's (Devlin et al. 2018): BertNormalizer, words and marks, "##" inside of words
bpe         byte-level BPE (Radford et al. 2019), as ModernBERT has it (Warner et al. 2024): NFC,
            GPT-2's words, no unknown characters

Both are the same on every run. The library's trainer of Unigram is not: it adds the scores of
pieces in the order of a hash table. Published Unigram vocabularies can be adopted.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.tokenization.documents import lines_of
from clozeline.pipeline.tokenization.options import Model
from clozeline.pipeline.tokenization.tokenizer import (
    PunktJson,
    Tokenizer,
    named_tokenizer,
)
from clozeline.pipeline.tokenization.tokenizer_spec import (
    SPECIAL_TOKENS,
    TokenizerSpec,
    read_spec,
    template,
)
from clozeline.pipeline.tokenization.vocabulary import normalization_of
from clozeline.pipeline.tokenization.wordpiece import count_words, learn_wordpiece

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
    values = json.loads(library.to_str())
    values["post_processor"] = template(library, SPECIAL_TOKENS)
    return read_spec(values, special_tokens=SPECIAL_TOKENS)
