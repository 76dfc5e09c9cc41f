"""A search for near-duplicates: what it depends on, and the names of its files."""

from dataclasses import dataclass
from functools import cached_property

from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.curation.near.signatures import Bands
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.dataset.cache_file import digest_of

# Increase it when the same documents would give other near files: words, signatures, layout.
NEAR_VERSION = 5


@dataclass(frozen=True, kw_only=True)
class NearSearch:
    """The search over the token cache files of a job, in whose folder its own files are."""

    folder: AnyPath
    tokenized: tuple[str, ...]  #: the names of the token cache files, one for each block
    similarity: float  #: least Jaccard similarity of near-duplicates
    partitions: int  #: of the band keys, and of the ids
    buckets: Buckets

    @cached_property
    def bands(self) -> Bands:
        return Bands.for_similarity(self.similarity)

    def paths(self, tokenized: str) -> tuple[AnyPath, AnyPath]:
        """What is kept of a block, once it is tokenized: band keys and words."""
        name = digest_of([NEAR_VERSION, tokenized, self.bands, self.partitions])
        return self.folder / f"{name}.near", self.folder / f"{name}.words"

    @cached_property
    def keys_paths(self) -> list[AnyPath]:
        """The band keys of all blocks."""
        return [self.paths(name)[0] for name in self.tokenized]

    @cached_property
    def words_paths(self) -> list[AnyPath]:
        return [self.paths(name)[1] for name in self.tokenized]

    @cached_property
    def _digest(self) -> str:
        """A digest of what is kept of all blocks."""
        return digest_of([path.name for path in self.keys_paths])

    def _step_path(self, kind: str, *parts: object) -> AnyPath:
        return self.folder / f"{digest_of([self._digest, *parts])}.{kind}"

    def pairs_path(self, partition: int) -> AnyPath:
        return self._step_path("pairs", partition)

    def edges_path(self, partition: int) -> AnyPath:
        return self._step_path("edges", partition, self.similarity)

    @property
    def drops_path(self) -> AnyPath:
        """The near-duplicates of all buckets, once they are found."""
        return self._step_path("drops", self.similarity, self.buckets)
