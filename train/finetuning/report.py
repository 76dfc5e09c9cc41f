"""What fine-tuning was worth: the classifier beside its rivals, on the same held-out rows."""

from dataclasses import dataclass
from typing import Any, Self

from train.finetuning.scores import Scores


@dataclass(frozen=True, kw_only=True)
class ModelScores:
    """Who is how right after training on so many rows; None: not asked for, or not possible."""

    examples: int
    finetuned: Scores
    from_scratch: Scores | None
    bag_of_words: Scores | None

    def accuracies(self) -> dict[str, float]:
        """By the names that a person reads."""
        rivals = {
            "fine-tuned": self.finetuned,
            "without pretraining": self.from_scratch,
            "bag-of-words": self.bag_of_words,
        }
        return {name: scores.accuracy for name, scores in rivals.items() if scores is not None}

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "examples": self.examples,
            "finetuned": self.finetuned.to_dict(),
            "from_scratch": self.from_scratch.to_dict() if self.from_scratch else None,
            "bag_of_words": self.bag_of_words.to_dict() if self.bag_of_words else None,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        rivals = {
            name: Scores.from_dict(values[name]) if values[name] else None
            for name in ("from_scratch", "bag_of_words")
        }
        return cls(
            examples=values["examples"],
            finetuned=Scores.from_dict(values["finetuned"]),
            from_scratch=rivals["from_scratch"],
            bag_of_words=rivals["bag_of_words"],
        )


@dataclass(frozen=True, kw_only=True)
class FinetuneReport:
    """How a call of `finetune` ended."""

    is_new: bool  # False: there was nothing to do
    standing: ModelScores
    label_efficiency: tuple[ModelScores, ...]  # after training on fewer rows
    notes: tuple[str, ...]  # what the user should know
    sources: dict[str, str | None]  # what was given, by name; for the record

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as report.json stores them."""
        return {
            **self.sources,
            **self.standing.to_dict(),
            "label_efficiency": [point.to_dict() for point in self.label_efficiency],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The report of a finished folder."""
        return cls(
            is_new=False,
            standing=ModelScores.from_dict(values),
            label_efficiency=tuple(map(ModelScores.from_dict, values["label_efficiency"])),
            notes=tuple(values["notes"]),
            sources={name: values[name] for name in ("run", "train", "test")},
        )

    def lines(self) -> list[str]:
        """For a person: each class, then the accuracies side by side, then the curve."""
        lines = [*self.standing.finetuned.table(), ""]
        for name, accuracy in self.standing.accuracies().items():
            lines.append(f"{name:>20}  accuracy {accuracy:.4f}")
        points = sorted([*self.label_efficiency, self.standing], key=lambda point: point.examples)
        for point in points if self.label_efficiency else ():
            found = "   ".join(f"{name} {value:.4f}" for name, value in point.accuracies().items())
            lines.append(f"{point.examples:>11,} examples  {found}")
        return lines + [f"note: {note}" for note in self.notes]
