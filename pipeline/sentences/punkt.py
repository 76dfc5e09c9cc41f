"""Punkt (Kiss & Strunk 2006): its parameters for a language, and NLTK's rules, quirks and all.

train_punkt(["Dr. Oz came. He left."], "english")  ->  PunktData(abbrev_types=["dr"], ...)

A decision takes the chunk that ends with a mark and its follower (candidates.py): a look-up
of the chunk, sometimes followed by a look-up of its relevant properties and the follower. Only
unseen chunks are tokenized and decided.

A chunk with a non-ASCII space (such as NBSP) is never remembered: NLTK's token pattern can match
across that space, so its whole context is tokenized each time. NLTK matches with the `regex`
package, whose letters and digits differ from those of `re`: the two patterns that use them are
compiled with it here as well. The packages also disagree about spaces, so those are listed.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from clozeline.pipeline.common.config_checks import check_types
from clozeline.pipeline.common.errors import InputError, did_you_mean
from clozeline.pipeline.sentences.candidates import ASCII_CLOSING, CHUNK, QUOTES
from clozeline.pipeline.sentences.marks import SPACE

#: All languages of `punkt_tab`; NLTK's data folders may have fewer.
LANGUAGES = (
    *("czech", "danish", "dutch", "english", "estonian", "finnish", "french", "german", "greek"),
    *("italian", "malayalam", "norwegian", "polish", "portuguese", "russian", "slovene"),
    *("spanish", "swedish", "turkish"),
)

CLOSING = re.escape(ASCII_CLOSING) + QUOTES  # ends a word in any position
RUN = rf"(?:-{{2,}}|\.{{2,}}|(?:\.[{SPACE}]){{2,}}\.)"  # dashes, dots, and ". . ."
WORD_END = rf"[{SPACE}]|$|[{CLOSING}]|{RUN}"
TOKEN = re.compile(
    rf"{RUN}|[^{SPACE}\"#&()*,:;@\[\]`{{}}\-][^{SPACE}]*?(?={WORD_END}|,(?:{WORD_END}))|[^{SPACE}]"
)
# Where training saw a type. Upper case: bits 1 to 3, at the beginning of a sentence, in the middle,
# or in an unknown position. Lower case: bits 4 to 6.
MIDDLE_UPPER, BEGIN_LOWER, UPPER, LOWER = 0b100, 0b10000, 0b1110, 0b1110000

#: Size of each memo, about 20 MB; a full memo is cleared.
MEMO_ENTRIES = 100_000
MEMO_BYTES = 64  # longer chunks are not memoized


@dataclass(frozen=True, kw_only=True)
class PunktData:
    """Punkt's parameters for a language, as plain sorted values: equal parameters, equal JSON.

    A *type* is a word in lower case; every number is of the type `##number##`.
    """

    language: str
    #: Types of abbreviations, without the final period.
    abbrev_types: list[str]
    #: Pairs of types with no sentence break between them; the first has no final period.
    collocations: list[list[str]]
    #: Types that often start a sentence.
    sent_starters: list[str]
    #: Type -> the cases and positions it was seen in, as bits (`UPPER` and others).
    ortho_context: dict[str, int]

    def __post_init__(self) -> None:
        if any(len(pair) != 2 for pair in self.collocations):
            raise ValueError("a collocation is not of two words")

    def to_json(self) -> dict[str, Any]:
        """The fields as a dict that JSON can store."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "PunktData":
        """The inverse of `to_json`. Raises InputError for other fields."""
        try:
            parameters = cls(**data)
            check_types(parameters)
            return parameters
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the Punkt parameters are invalid ({error}); build the tokenizer again."
            ) from None


def find_punkt(language: str) -> PunktData | None:
    """The `punkt_tab` parameters from NLTK's data folders (NLTK_DATA); None if they are not there.

    Raises InputError if NLTK refuses to read them, and for a name that is nearly that of a language
    of `punkt_tab`, whatever is installed: such a name is a typo.
    """
    import warnings

    import nltk.data
    from nltk.tokenize.punkt import load_punkt_params

    if not re.fullmatch(r"\w+", language):
        raise InputError(f"{language!r} is not a language; give a name such as 'english'.")
    end = did_you_mean(language.lower(), LANGUAGES, cutoff=0.8)
    if end != "." and language not in LANGUAGES:
        raise InputError(f"{language!r} is not a language of Punkt{end}")
    # ValueError: a line without its tab, or bytes that are not UTF-8.
    with warnings.catch_warnings(), suppress(LookupError, PermissionError, ValueError):
        # NLTK warns about every folder that other users can write to.
        warnings.simplefilter("ignore", RuntimeWarning)
        folder = nltk.data.find(f"tokenizers/punkt_tab/{language}/")
        return _plain(load_punkt_params(folder), language)
    if path := installed_languages().get(language):
        raise InputError(
            f"NLTK cannot read {path}: a file is missing or damaged, or other users can write "
            f"to it. Run `chmod -R go-w {path.parents[2]}`, or install punkt_tab again."
        )
    return None


def installed_languages() -> dict[str, Path]:
    """The languages of `punkt_tab` in NLTK's data folders, sorted, and where each is."""
    import nltk.data

    roots = [Path(root, "tokenizers", "punkt_tab") for root in nltk.data.path if root]
    folders = {path.name: path for root in roots for path in root.glob("*/")}
    return dict(sorted(folders.items()))


def train_punkt(texts: Iterable[str], language: str) -> PunktData:
    """Punkt's parameters learned from `texts`; their order does not matter.

    NLTK takes 2 s and 75 MB per million characters, and two million are plenty: on Wikipedia eight
    came no closer to its English parameters than one. NLTK's default settings are kept: with
    INCLUDE_ALL_COLLOCS a repetitive corpus makes "empire. Eventually" a collocation.
    """
    from nltk.tokenize.punkt import PunktTrainer

    trainer = PunktTrainer()
    trainer.train("\n\n".join(sorted(texts)))
    return _plain(trainer.get_params(), language)


def _plain(parameters: Any, language: str) -> PunktData:
    """NLTK's PunktParameters, sorted."""
    return PunktData(
        language=language,
        abbrev_types=sorted(parameters.abbrev_types),
        collocations=sorted(map(list, parameters.collocations)),
        sent_starters=sorted(parameters.sent_starters),
        ortho_context=dict(sorted(parameters.ortho_context.items())),
    )


class Token(NamedTuple):
    """A token after Punkt's first pass, which does not depend on its neighbours."""

    text: str
    type: str
    ends: bool  # the first pass says that a sentence ends here
    marked: bool  # it is an abbreviation or an ellipsis

    @property
    def type_no_period(self) -> str:
        return self.type[:-1] if len(self.type) > 1 and self.type[-1] == "." else self.type


class Ending(NamedTuple):
    """The properties of a token that decide, in the second pass, whether a sentence ends there."""

    ends: bool
    marked: bool
    initial: bool
    number: bool
    collocating: str | None  # the type, if some collocation starts with it


#: A sentence ends, or does not end, here whatever follows.
CERTAIN = Ending(ends=True, marked=False, initial=False, number=False, collocating=None)
CONTINUES = CERTAIN._replace(ends=False)


class PunktRules:
    """The rules with the parameters of one language, and what was decided with them."""

    def __init__(self, parameters: PunktData) -> None:
        import regex

        self._is_number = regex.compile(r"-?[.,]?\d[\d,.-]*\.?").fullmatch
        self._is_initial = regex.compile(r"[^\W\d]\.").fullmatch
        self._abbreviations = set(parameters.abbrev_types)
        self._collocations = {(first, second) for first, second in parameters.collocations}
        self._collocating = {first for first, _ in parameters.collocations}
        self._starters = set(parameters.sent_starters)
        self._contexts = parameters.ortho_context
        self._endings: dict[bytes, Ending | None] = {}
        self._decisions: dict[tuple[Ending, str], bool] = {}
        #: Whether a sentence ends at each mark that is a token of its own.
        self.ends_at_lone_marks = "." not in self._collocating
        #: The words after whose period a sentence may continue.
        self.known_stems = sorted(self._abbreviations | self._collocating)

    def is_end(self, data: bytes, start: int, end: int, at: int) -> bool:
        """Whether a sentence ends after the chunk data[start:end]; the follower starts at `at`."""
        ending = self.ending_of(data[start:end])
        if at == end:
            follower = data[at : at + 4].decode(errors="replace")[0]
        else:
            chunk = CHUNK.match(data, at)
            assert chunk  # a follower does not start with space
            follower = chunk[0].decode()
        if ending is None:
            return self._breaks_inside(self._tokens(data[start:at].decode() + follower))
        known = self._decisions.get((ending, follower))
        if known is None:
            tokens = self._tokens(follower)
            known = self._ends_sentence(ending, tokens[0]) or self._breaks_inside(tokens)
            if len(follower) <= MEMO_BYTES:
                _remember(self._decisions, (ending, follower), known)
        return known

    def ending_of(self, chunk: bytes) -> Ending | None:
        """The chunk's ending, CERTAIN if it decides alone; None if the follower is needed."""
        if chunk in self._endings:
            return self._endings[chunk]
        ending = None  # it contains a non-ASCII space
        if CHUNK.fullmatch(chunk):
            tokens = self._tokens(chunk.decode())
            ending = self._ending(tokens[-1])
            # "what?!" has a break after "what?" already, so it is certain whatever follows "!".
            if ending == CERTAIN or self._breaks_inside(tokens):
                ending = CERTAIN
        if len(chunk) <= MEMO_BYTES:
            _remember(self._endings, chunk, ending)
        return ending

    def _breaks_inside(self, tokens: list[Token]) -> bool:
        """Whether a sentence ends at any token but the last."""
        return any(self._ends_sentence(self._ending(a), b) for a, b in pairwise(tokens))

    def _tokens(self, text: str) -> list[Token]:
        return list(map(self._token, TOKEN.findall(text)))

    def _token(self, word: str) -> Token:
        lower = word.lower()
        type_ = "##number##" if self._is_number(lower) else lower
        ends = marked = False
        if word in (".", "?", "!"):
            ends = True
        elif word.endswith(".."):
            marked = not word.strip(".")
        elif word.endswith("."):
            stem = word[:-1].lower()
            marked = not self._abbreviations.isdisjoint((stem, stem.rpartition("-")[2]))
            ends = not marked
        return Token(word, type_, ends, marked)

    def _ending(self, token: Token) -> Ending:
        if not token.text.endswith("."):
            return CERTAIN if token.ends else CONTINUES
        type_ = token.type_no_period
        initial = self._is_initial(token.text) is not None
        collocating = type_ if type_ in self._collocating else None
        return Ending(token.ends, token.marked, initial, type_ == "##number##", collocating)

    def _ends_sentence(self, ending: Ending, token: Token) -> bool:
        """Punkt's second pass: whether a sentence ends between `ending` and the token after it."""
        type_ = token.type_no_period if token.ends else token.type
        if (ending.collocating, type_) in self._collocations:
            return False
        upper = token.text[0].isupper()
        starts = self._starts_sentence(token, type_)
        if ending.marked and not ending.initial and (starts or (upper and type_ in self._starters)):
            return True
        if (ending.initial or ending.number) and starts is False:
            return False
        seen_lower = self._contexts.get(type_, 0) & LOWER
        if ending.initial and starts is None and upper and not seen_lower:
            return False
        return ending.ends

    def _starts_sentence(self, token: Token, type_: str) -> bool | None:
        """Whether the token's case says that it starts a sentence (section 4.1.1).

        Yes for "The" if training saw "the", and never "The" in the middle of a sentence;
        no for "the" if training saw "The", or never "the" at the beginning; else None.
        """
        if token.text in (";", ":", ",", ".", "!", "?"):
            return False
        seen = self._contexts.get(type_, 0)
        if token.text[0].isupper() and seen & LOWER and not seen & MIDDLE_UPPER:
            return True
        if token.text[0].islower() and (seen & UPPER or not seen & BEGIN_LOWER):
            return False
        return None


def _remember(memo: dict[Any, Any], key: object, value: object) -> None:
    if len(memo) >= MEMO_ENTRIES:
        memo.clear()
    memo[key] = value
