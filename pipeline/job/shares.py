"""What a process does of the graph: the share of a worker, of a task, or all of it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from clozeline.pipeline.common.paths import AnyPath
from clozeline.pipeline.job.steps import Steps


class Stage(Protocol):
    """A step of the graph, as those who deal its elements see it."""

    @property
    def label(self) -> str: ...

    @property
    def done(self) -> str:
        """ "blocks tokenized", of which a waiting task says the number."""

    def elements(self) -> Sequence[Any]: ...

    def size(self, element: Any) -> int:
        """How much work an element is, compared with others."""

    def files(self, steps: Steps, element: Any) -> list[AnyPath]:
        """What is there when the element is done; known once all stages before are complete."""


class Share(Protocol):
    """What one process does of each stage; plain values, since Beam copies it."""

    is_of_task: ClassVar[bool]

    def of(self, stage: Stage, steps: Steps) -> Iterator[Any]:
        """The elements, one after the other is done; ends when all processes have done theirs."""


class Outcome(NamedTuple):
    """What a worker says at its end."""

    counters: Counter[str]  #: Beam's
    is_last: bool  #: whether it has finished the data set; else another task had
