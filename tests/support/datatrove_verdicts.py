"""Real texts, and datatrove's verdicts on them: a line each.

hash of the text,c4,fineweb,gopher    the reason of each filter, "" if it keeps the text
"""

import csv
import hashlib
import sys
from pathlib import Path

import pyarrow.parquet as pq

VERDICTS = Path(__file__).with_suffix(".csv")


def verdicts_of(filter_name: str) -> dict[str, str]:
    """The reasons of one filter, by the hash of the text."""
    with VERDICTS.open() as file:
        return {row["text"]: row[filter_name] for row in csv.DictReader(file)}


def real_texts(data: Path) -> list[str]:
    """100 articles and 100 reviews, from the beginning of each file."""
    texts: list[str] = []
    for pattern, column in (("wikipedia/train-*.parquet", "text"), ("reviews/*.parquet", "text")):
        files = sorted(data.glob(pattern))
        for path in files:
            count = 100 // len(files) + 1
            rows = next(pq.ParquetFile(path).iter_batches(count, columns=[column]))
            texts += [text for text in rows[column].to_pylist() if text.strip()]
    return texts


def main() -> None:
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    filters = {
        "c4": [C4QualityFilter()],
        "fineweb": [FineWebQualityFilter()],
        "gopher": [GopherQualityFilter(), GopherRepetitionFilter()],
    }
    lines = []
    for text in real_texts(Path(sys.argv[1])):
        reasons = [hashlib.blake2b(text.encode(), digest_size=16).hexdigest()]
        for parts in filters.values():
            verdicts = [part.filter(Document(text=text, id="")) for part in parts]
            reasons.append(next((v[1] for v in verdicts if isinstance(v, tuple)), ""))
        lines.append(",".join(reasons))
    print("\n".join([",".join(["text", *filters]), *sorted(set(lines))]))


if __name__ == "__main__":
    main()
