"""Real texts, and datatrove's verdicts on them.

{filter: {hash of the text: reason, "" if it is kept}}
"""

import hashlib
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq

VERDICTS = Path(__file__).with_suffix(".json")


def real_texts(data: Path) -> list[str]:
    """400 articles and 400 reviews, from the beginning of each file."""
    texts: list[str] = []
    for pattern, column in (("wikipedia/train-*.parquet", "text"), ("reviews/*.parquet", "text")):
        files = sorted(data.glob(pattern))
        for path in files:
            count = 400 // len(files) + 1
            rows = next(pq.ParquetFile(path).iter_batches(count, columns=[column]))
            texts += [text for text in rows[column].to_pylist() if text.strip()]
    return texts


def main() -> None:
    """Print the verdicts."""
    from datatrove.data import Document
    from datatrove.pipeline.filters import (
        C4QualityFilter,
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )

    filters = {
        "gopher": [GopherQualityFilter(), GopherRepetitionFilter()],
        "c4": [C4QualityFilter()],
        "fineweb": [FineWebQualityFilter()],
    }
    texts = real_texts(Path(sys.argv[1]))
    verdicts: dict[str, dict[str, str]] = {}
    for name, parts in filters.items():
        verdicts[name] = {}
        for text in texts:
            reasons = [part.filter(Document(text=text, id="")) for part in parts]
            found = [reason[1] for reason in reasons if isinstance(reason, tuple)]
            key = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
            verdicts[name][key] = found[0] if found else ""
    print(json.dumps(verdicts, indent=0, sort_keys=True))


if __name__ == "__main__":
    main()
