"""The path that the user gave, for a folder that the command uses under another path.

s3://bucket/run  ->  ~/.cache/clozeline/5f0c.../run    as_given(that) -> "s3://bucket/run"
"""

from typing import Any

import click

GIVEN = "clozeline.given"


def note_given(path: object, given: str) -> None:
    """Remember what the user gave for a path, for the rest of the command."""
    click.get_current_context().meta.setdefault(GIVEN, {})[str(path)] = given


def as_given(path: Any) -> str:
    """The path as the user gave it, or else the path itself."""
    context = click.get_current_context(silent=True)
    given: dict[str, str] = context.meta.get(GIVEN, {}) if context else {}
    return given.get(str(path), str(path))
