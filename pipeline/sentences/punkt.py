"""Punkt's parameters for a language: from NLTK's `punkt_tab`, or trained on text.

train_punkt(["Dr. Oz came. He left."], "english")  ->  PunktData(abbrev_types=["dr"], ...)
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clozeline.pipeline.common.config_checks import check_types
from clozeline.pipeline.common.errors import InputError, did_you_mean

#: All languages of `punkt_tab`; NLTK's data folders may have fewer.
LANGUAGES = (
    *("czech", "danish", "dutch", "english", "estonian", "finnish", "french", "german", "greek"),
    *("italian", "malayalam", "norwegian", "polish", "portuguese", "russian", "slovene"),
    *("spanish", "swedish", "turkish"),
)


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
    #: Type -> the cases and positions it was seen in, as bits (`UPPER` and others in `rules.py`).
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

    _check_language(language)
    # ValueError: a line without its tab, or bytes that are not UTF-8.
    with warnings.catch_warnings(), suppress(LookupError, PermissionError, ValueError):
        # NLTK warns about every folder that other users can write to.
        warnings.simplefilter("ignore", RuntimeWarning)
        folder = nltk.data.find(f"tokenizers/punkt_tab/{language}/")
        return _plain(load_punkt_params(folder), language)
    for path in _installed():
        if path.name == language:
            raise InputError(
                f"NLTK cannot read {path}: a file is missing or damaged, or other users can write "
                f"to it. Run `chmod -R go-w {path.parents[2]}`, or install punkt_tab again."
            )
    return None


def installed_languages() -> list[str]:
    """The languages of `punkt_tab` in NLTK's data folders, sorted."""
    return sorted({path.name for path in _installed()})


def _installed() -> list[Path]:
    import nltk.data

    roots = [Path(root, "tokenizers", "punkt_tab") for root in nltk.data.path if root]
    return sorted(path for root in roots for path in root.glob("*/"))


def _check_language(language: str) -> None:
    if not re.fullmatch(r"\w+", language):
        raise InputError(f"{language!r} is not a language; give a name such as 'english'.")
    end = did_you_mean(language.lower(), LANGUAGES, cutoff=0.8)
    if end != "." and language not in LANGUAGES:
        raise InputError(f"{language!r} is not a language of Punkt{end}")


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
