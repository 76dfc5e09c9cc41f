"""Sentences to ids, by the fastest way that gives exactly the ids of the library `tokenizers`.

    model                                            encoded by
    WordPiece                                        nanotoken, compiled; all sentences in one call
    byte-level BPE, Unigram with plain steps         `tokenizers`, each word once (`word_memo.py`)
    others; any where nanotoken cannot be loaded     `tokenizers`, sentence by sentence

nanotoken encodes one text, in which a NUL is between any two sentences. NUL is an added token of
its tokenizer, so each sentence is encoded by itself, and the NULs say where it ends.

**Exact or not at all**: `check` compares with `tokenizers`; jobs call it for a thousandth of their
documents (`documents.py`).
"""

import json
import sys
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clozeline.pipeline.common.errors import JobFailedError, one_line
from clozeline.pipeline.common.ragged import Offsets
from clozeline.pipeline.sentences.splitter import Sentences
from clozeline.pipeline.tokenization.tokenizer import Tokenizer
from clozeline.pipeline.tokenization.word_memo import WordMemo, find_cuts

Ids = NDArray[np.uint32]

NUL = "\0"


class SentenceEncoder:
    """Encodes batches of sentences; use one per worker, since it remembers words that it has seen.

    That takes up to about 130 MB and does not affect results. A call is fastest from about 100 KB
    of text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._compiled: Any = _wordpiece(tokenizer) if tokenizer.spec is None else None
        cuts = find_cuts(tokenizer.spec) if tokenizer.spec else None
        self._memo = WordMemo(tokenizer.encode_batch, cuts) if cuts else None

    def encode(self, sentences: list[str] | Sentences) -> tuple[Ids, Offsets]:
        """The ids of S sentences, concatenated, uint32, and the number of ids of each, int64 [S].

            ["Hello, world", "", "unaffable"]  ->  [7592 1010 2088 14477 20961 3468],  [3 0 3]

        Raises UnicodeEncodeError for a lone surrogate in a string, as the library does.
        """
        if self._compiled is None:
            listed = sentences.to_list() if isinstance(sentences, Sentences) else sentences
            return self._memo.encode(listed) if self._memo else self._encode_by_library(listed)
        spans = sentences if isinstance(sentences, Sentences) else Sentences.of(sentences)
        if NUL.encode() in spans.data:  # documents have none
            return self._encode_by_library(spans.to_list())
        parts = [self._encode_compiled(slab) for slab in spans.slabs()]
        ids, lengths = zip(*parts, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def check(self, sentences: list[str] | Sentences, ids: Ids, *, name: str) -> None:
        """Compare the ids of these sentences, concatenated, with those of `tokenizers`.

        Raises JobFailedError, which names the document and has both lists, if they differ.
        """
        listed = sentences.to_list() if isinstance(sentences, Sentences) else sentences
        wanted = list(chain.from_iterable(self.tokenizer.encode_batch(listed)))
        if (found := ids.tolist()) != wanted:
            raise JobFailedError(
                f"document {name}: its ids differ from those of `tokenizers`, so there is no data "
                f"set: {found} instead of {wanted}; report the document, and uninstall nanotoken "
                "to build the data set without it."
            )

    def _encode_compiled(self, sentences: Sentences) -> tuple[Ids, Offsets]:
        text = [_separated(sentences)]
        ids, _ = self._compiled.encode_batch(text, add_special_tokens=False, parallel=False)
        if not len(sentences):
            return ids, np.zeros(0, np.int64)
        ends = np.flatnonzero(ids == self.tokenizer.vocab_size)
        lengths = np.diff(np.concatenate([[-1], ends, [len(ids)]])) - 1
        return np.delete(ids, ends), lengths

    def _encode_by_library(self, sentences: list[str]) -> tuple[Ids, Offsets]:
        rows = self.tokenizer.encode_batch(sentences)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return np.fromiter(chain.from_iterable(rows), np.uint32, int(lengths.sum())), lengths


def _separated(sentences: Sentences) -> bytes:
    """The text of the sentences with a NUL between any two, in place of a space if there is one."""
    data, ends = np.frombuffer(sentences.data, np.uint8), sentences.ends[:-1]
    touching = ends == sentences.starts[1:]
    if touching.any():
        data = np.insert(data, ends[touching], 0)
        ends = ends + np.cumsum(touching) - touching
    else:
        data = data.copy()
    data[ends] = 0
    return data.tobytes()


def _wordpiece(tokenizer: Tokenizer) -> Any:
    """nanotoken's encoder of this tokenizer; None, with a line on stderr, where there is none."""
    values = json.loads(tokenizer.library.to_str())
    separator = {"id": tokenizer.vocab_size, "content": NUL, "special": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    values |= {"added_tokens": [separator | flags], "post_processor": None}
    try:
        from nanotoken.nanotoken_rs import WordPieceTokenizer

        return WordPieceTokenizer.from_json(json.dumps(values))
    except Exception as error:  # of a missing or damaged wheel, and of what it does not know
        _warn(one_line(error))
        return None


@cache  # once in a process
def _warn(reason: str) -> None:
    print(
        f"warning: nanotoken does not work here ({reason}), so `tokenizers` finds the same ids 20 "
        "times as slowly; install nanotoken where it has a wheel.",
        file=sys.stderr,
    )
