"""Text to a vocabulary; BPE and Unigram by the trainers of the `tokenizers` library.

    learn_vocabulary(texts, model="bpe", vocab_size=50_368)  ->  Tokenizer

wordpiece   BERT's (Devlin et al. 2018): BertNormalizer, words and marks, "##" inside of words
bpe         byte-level BPE (Radford et al. 2019), as ModernBERT has it (Warner et al. 2024): NFC,
            GPT-2's words, no unknown characters
unigram     (Kudo 2018), as XLM-R and DeBERTa-v3 have it: NFKC, "\u2581" at the start of a word

WordPiece (`wordpiece.py`) and BPE are the same on every run. **Unigram is not**: the library adds
the scores of pieces in the order of a hash table. So learn it once, and keep the folder.
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
# The library's time grows with the square of a word's length (80,000 times "x": 6 s), and Unigram's
# trainer overflows the stack at about 70,000 characters. Metaspace ends words at spaces alone, so
# a line of Chinese is one; hardly any is longer than this.
MAX_WORD = 4096  #: characters
LONG_WORD = re.compile(rf"[^ ]{{{MAX_WORD}}}|\s{{{MAX_WORD}}}")  # BPE has words of whitespace
MULTIPLE = 64  #: sizes of matrices that GPUs multiply fast
#: As in ModernBERT's and XLM-R's: [MASK] takes the space before it, as the word it stands for does.
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

    WordPiece includes the `alphabet` most frequent characters, Unigram all. Both BPE and Unigram
    keep case and accents, and are filled up to a multiple of 64 with "[unused0]" and so on. A small
    text gives fewer tokens; for WordPiece, a `vocab_size` below the size of its alphabet gives
    more. Raises InputError if the text has no words, or if `vocab_size` has no room for the 256
    bytes of BPE or the characters of Unigram.
    """
    lines = _lines(texts)
    if model != "wordpiece":
        return named_tokenizer("the training text", *_learn_spec(lines, model, vocab_size), punkt)
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


def _learn_spec(
    lines: Iterator[list[str]], model: Model, vocab_size: int
) -> tuple[list[str], TokenizerSpec]:
    library, trainer = _byte_level_bpe(vocab_size) if model == "bpe" else _unigram(vocab_size)
    try:
        library.train_from_iterator(lines, trainer)
    except Exception as error:  # the library has no class for it
        if "not large enough" not in str(error):
            raise
        raise InputError(
            f"--vocab-size {vocab_size} has no room for the characters of the text; give more."
        ) from error
    known = library.get_vocab_size()
    if known <= len(SPECIAL_TOKENS) + (256 if model == "bpe" else 1):
        raise InputError("the training text has no words; give more text.")
    unused = [f"[unused{i}]" for i in range(-known % MULTIPLE)]
    library.add_special_tokens(unused)  # special: text that spells one stays text
    values = json.loads(library.to_str())
    values["post_processor"] = template(library, SPECIAL_TOKENS)
    return read_spec(values, special_tokens=SPECIAL_TOKENS)


def _byte_level_bpe(vocab_size: int) -> tuple[tokenizers.Tokenizer, trainers.BpeTrainer]:
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
    return library, trainer


def _unigram(vocab_size: int) -> tuple[tokenizers.Tokenizer, trainers.UnigramTrainer]:
    library = tokenizers.Tokenizer(models.Unigram())
    library.normalizer = normalizers.NFKC()
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, unk_token="[UNK]", special_tokens=ADDED, show_progress=False
    )
    return library, trainer
