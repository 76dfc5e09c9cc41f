"""The usual way from text to BERT's examples, row by row: the baseline of the benchmarks.

Sentences by NLTK, ids by `tokenizers`, then pairs and masks in Python loops as Google's
create_pretraining_data.py makes them (Devlin et al. 2018, appendix A.2), on ids, which is quicker
than on its strings. Rows have its seven columns, padded as it pads them, and are written as Arrow.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from clozeline.pipeline.tokenization.tokenizer import Tokenizer

Document = list[list[int]]  # sentences of ids

SENTENCES_PER_CALL = 10_000
ROWS_PER_BATCH = 10_000
SCHEMA = pa.schema(
    {
        "input_ids": pa.list_(pa.int32()),
        "input_mask": pa.list_(pa.int32()),
        "segment_ids": pa.list_(pa.int32()),
        "masked_lm_positions": pa.list_(pa.int32()),
        "masked_lm_ids": pa.list_(pa.int32()),
        "masked_lm_weights": pa.list_(pa.float32()),
        "next_sentence_labels": pa.int32(),
    }
)


@dataclass(frozen=True, kw_only=True)
class ReferenceChain:
    """NLTK's splitter, the library's tokenizer, and the numbers of BERT's recipe."""

    splitter: Any  # nltk's PunktSentenceTokenizer
    tokenizer: Tokenizer
    max_seq_length: int = 128
    short_seq_prob: float = 0.1
    masked_lm_prob: float = 0.15
    max_predictions: int = 20

    def tokenize(self, texts: Sequence[str]) -> list[Document]:
        """Punkt and `encode_batch` alone: the sentences of each text as ids."""
        lines = [[line for line in text.split("\n") if line.strip()] for text in texts]
        split = [[s for line in of for s in self.splitter.tokenize(line)] for of in lines]
        sentences = [sentence for of in split for sentence in of]
        encode = self.tokenizer.library.encode_batch
        ids = [
            encoding.ids
            for start in range(0, len(sentences), SENTENCES_PER_CALL)
            for encoding in encode(
                sentences[start : start + SENTENCES_PER_CALL], add_special_tokens=False
            )
        ]
        rest = iter(ids)
        documents = [[sentence for _, sentence in zip(of, rest, strict=False)] for of in split]
        return [document for document in documents if document]

    def write(self, documents: list[Document], path: Path, *, seed: int = 0) -> int:
        """Make pairs and masks, and write a file of rows; return the number of rows."""
        rng = random.Random(seed)
        rng.shuffle(documents)
        rows = []
        for index in range(len(documents)):
            rows += [self._row(pair, rng) for pair in self._pairs(documents, index, rng)]
        rng.shuffle(rows)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, SCHEMA) as writer:
            for start in range(0, len(rows), ROWS_PER_BATCH):
                part = rows[start : start + ROWS_PER_BATCH]
                writer.write_batch(pa.RecordBatch.from_pylist(part, schema=SCHEMA))
        return len(rows)

    def _pairs(
        self, documents: list[Document], index: int, rng: random.Random
    ) -> Iterator[tuple[list[int], list[int], bool]]:
        """A, B and whether B is random, for each span of a document."""
        document = documents[index]
        longest = self.max_seq_length - 3
        target = longest if rng.random() >= self.short_seq_prob else rng.randint(2, longest)
        chunk: list[list[int]] = []
        length = i = 0
        while i < len(document):
            chunk.append(document[i])
            length += len(document[i])
            if i == len(document) - 1 or length >= target:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
                a = [token for sentence in chunk[:a_end] for token in sentence]
                is_random = len(chunk) == 1 or rng.random() < 0.5
                if is_random:
                    b = _elsewhere(documents, index, target - len(a), rng)
                    i -= len(chunk) - a_end  # the part that a random B replaced is used again
                else:
                    b = [token for sentence in chunk[a_end:] for token in sentence]
                _truncate(a, b, longest, rng)
                yield a, b, is_random
                chunk, length = [], 0
            i += 1

    def _row(
        self, pair: tuple[list[int], list[int], bool], rng: random.Random
    ) -> dict[str, list[int] | int]:
        """[CLS] A [SEP] B [SEP] with 15 % hidden: 80 % [MASK], 10 % kept, 10 % a random token."""
        a, b, is_random = pair
        tokenizer = self.tokenizer
        ids = [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
        special = (tokenizer.cls_id, tokenizer.sep_id)
        candidates = [place for place, token in enumerate(ids) if token not in special]
        rng.shuffle(candidates)
        wanted = min(self.max_predictions, max(1, round(len(ids) * self.masked_lm_prob)))
        positions = sorted(candidates[:wanted])
        labels = [ids[place] for place in positions]
        for place in positions:
            if rng.random() < 0.8:
                ids[place] = tokenizer.mask_id
            elif rng.random() >= 0.5:
                ids[place] = rng.randint(0, tokenizer.vocab_size - 1)
        segments = [0] * (len(a) + 2) + [1] * (len(b) + 1)
        return {
            "input_ids": _padded(ids, self.max_seq_length),
            "input_mask": _padded([1] * len(ids), self.max_seq_length),
            "segment_ids": _padded(segments, self.max_seq_length),
            "masked_lm_positions": _padded(positions, self.max_predictions),
            "masked_lm_ids": _padded(labels, self.max_predictions),
            "masked_lm_weights": _padded([1] * len(labels), self.max_predictions),
            "next_sentence_labels": int(is_random),
        }


def _elsewhere(documents: list[Document], index: int, target: int, rng: random.Random) -> list[int]:
    """Sentences of another document that reach the target."""
    for _ in range(10):
        other = rng.randint(0, len(documents) - 1)
        if other != index:
            break
    b: list[int] = []
    for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
        b += sentence
        if len(b) >= target:
            break
    return b


def _truncate(a: list[int], b: list[int], longest: int, rng: random.Random) -> None:
    """Cut token by token from the longer one, at the front or at the back."""
    while len(a) + len(b) > longest:
        longer = a if len(a) > len(b) else b
        if rng.random() < 0.5:
            del longer[0]
        else:
            longer.pop()


def _padded(values: list[int], width: int) -> list[int]:
    return values + [0] * (width - len(values))
