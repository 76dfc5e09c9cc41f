"""The one place where a folder or URL that a user gave is opened; all else takes local folders.

from Python    with local_folder("s3://bucket/run") as run:
a command      @click.argument("run", type=Folder())
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from clozeline.pipeline.commandline.config_options import PathOrUrl, note_given
from clozeline.pipeline.commandline.hub_model import hub_folder, is_hub_name
from clozeline.pipeline.common.errors import ClozelineError
from clozeline.pipeline.common.paths import AnyPath, GivenPath, is_local, path_of

#: The files of a checkpoint that a command may read.
MODEL, OPTIMIZER = "model.safetensors", "optimizer.safetensors"


@contextmanager
def local_folder(
    given: GivenPath,
    *,
    writes: bool = False,
    weights: Collection[str] = (MODEL,),
    step: int | None = None,
) -> Iterator[Path]:
    """The folder itself, or this machine's copy of one in a store (`remote_folder`).

    "work/run"        ->  work/run
    "s3://bucket/run" ->  ~/.cache/clozeline/5f0c.../run, which errors call s3://bucket/run
    "bert-base-cased" ->  ~/.cache/huggingface/hub/..., if no such folder is here

    Of a run's checkpoints, only that of `step`, or the newest, comes with the named `weights`.
    """
    path = path_of(given)
    if is_local(path):
        is_named = not writes and is_hub_name(given)
        yield hub_folder(str(given), weights=bool(weights)) if is_named else path
        return
    from clozeline.train.store.remote_folder import remote_folder

    with remote_folder(str(path), writes=writes, weights=weights, step=step) as copy:
        try:
            yield copy
        except ClozelineError as error:
            error.args = (str(error).replace(str(copy), str(path).rstrip("/")),)
            raise


class Folder(PathOrUrl):
    """A local folder, or the URL of one; the command gets the path of its local copy.

    With `writes`, what the command writes there goes to the store while it runs and at its end.
    For the others see `local_folder`.
    """

    def __init__(
        self,
        *,
        writes: bool = False,
        weights: Collection[str] = (MODEL,),
        step: int | None = None,
    ) -> None:
        self.opened: dict[str, Any] = {"writes": writes, "weights": weights, "step": step}

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Path:
        """Raises InputError for a store that cannot be reached, or that another process writes."""
        if "://" not in str(value):
            if ctx and not (self.opened["writes"] or ctx.resilient_parsing) and is_hub_name(value):
                return hub_folder(str(value), weights=bool(self.opened["weights"]))
            path = super().convert(value, param, ctx)
            assert is_local(path)
            return path
        if ctx is None:
            return Path(value)
        with ctx.scope(cleanup=False):
            if ctx.resilient_parsing:  # nothing will be read or written
                note_given(Path(value), str(value))
                return Path(value)
            return _copy(str(value), **self.opened)


def local_copy(folder: AnyPath) -> Path:
    """The folder, or the local copy of one in a store without weights, until the command ends."""
    return folder if is_local(folder) else _copy(folder.as_uri(), weights=())


def _copy(url: str, **opened: Any) -> Path:
    folder = click.get_current_context().with_resource(local_folder(url, **opened))
    note_given(folder, url)
    return folder
