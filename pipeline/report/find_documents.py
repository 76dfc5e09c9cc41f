"""Documents of a data set in its sources, by the hashes that its rows have.

find_documents(["wiki.jsonl"], {0x51c2...}, config)  ->  (0x51c2..., "wiki.jsonl", "Rome is ...")
"""

from collections.abc import Iterator, Sequence

from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.curation.curate import curate
from clozeline.pipeline.curation.rules import quality_of
from clozeline.pipeline.dataset.buckets import hash_documents
from clozeline.pipeline.sources.formats import read_block
from clozeline.pipeline.steps.context import blocks_of
from clozeline.pipeline.tokenization.documents import clean_texts


def find_documents(
    sources: Sequence[str], wanted: set[int], config: DataConfig
) -> Iterator[tuple[int, str, str]]:
    """Each document once: its hash, the source it is in, and its text as it was tokenized."""
    missing, quality = set(wanted), quality_of(config.quality)
    for block in blocks_of(sources, config):
        for chunk in read_block(block):
            texts = clean_texts(curate(chunk.texts, quality, None)[0], config.min_characters)
            for hash, text in zip(hash_documents(texts)[0].tolist(), texts, strict=True):
                if hash in missing:
                    missing.discard(hash)
                    yield hash, block.path, text
