"""A folder that is whole or absent: it is filled under another name."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from pipeline.common.errors import InputError


@contextmanager
def partial_folder(out: Path) -> Iterator[Path]:
    """A new folder beside `out`, to be filled and renamed; what is not renamed is removed.

    Raises InputError where the disk is too full for a file of weights.
    """
    partial = out.with_name(f".{out.name}.{uuid.uuid4().hex}.partial")
    partial.mkdir(parents=True)
    try:
        yield partial
    except SafetensorError as error:
        raise InputError(
            f"{out} cannot be written ({error}); make room and run the same again."
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
