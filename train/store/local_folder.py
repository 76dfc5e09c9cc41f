"""A folder that a user gave, on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clozeline.pipeline.common.errors import ClozelineError
from clozeline.pipeline.common.paths import GivenPath, is_local, path_of


@contextmanager
def local_folder(given: GivenPath, *, writes: bool = False) -> Iterator[Path]:
    """The folder itself, or this machine's copy of one in a store (`remote_folder`).

    "work/run"        ->  work/run
    "s3://bucket/run" ->  ~/.cache/clozeline/5f0c.../run, which errors call s3://bucket/run
    """
    path = path_of(given)
    if is_local(path):
        yield path
        return
    from clozeline.train.store.remote_folder import remote_folder

    with remote_folder(str(path), writes=writes) as copy:
        try:
            yield copy
        except ClozelineError as error:
            error.args = (str(error).replace(str(copy), str(path).rstrip("/")),)
            raise
