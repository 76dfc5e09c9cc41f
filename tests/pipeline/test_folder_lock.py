"""One writer per folder: the second is refused, and a killed one leaves nothing behind."""

import errno
import fcntl
import os
import subprocess
import sys

import pytest

from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import LOCK, locked_folder

HOLD = """
import sys
from pathlib import Path
from clozeline.pipeline.common.folder_lock import locked_folder
with locked_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_until_the_holder_is_gone_even_if_it_was_killed(tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-c", HOLD, out]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as holder:
        assert holder.stdout.readline() == "locked\n"
        expected = rf"out is in use by process {holder.pid} on .+ since \d{{4}}-"
        with pytest.raises(InputError, match=expected), locked_folder(out):
            pass
        holder.kill()
    with locked_folder(out):
        assert f'"pid": {os.getpid()}' in (out / LOCK).read_text()


def test_nothing_is_left_in_the_folder(tmp_path):
    for _ in range(2):
        with locked_folder(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_made_for_nothing_is_removed(tmp_path):
    with locked_folder(tmp_path / "deep" / "out"):
        pass
    assert not (tmp_path / "deep" / "out").exists()
    with locked_folder(tmp_path / "out"):
        (tmp_path / "out" / "a").touch()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a"]


def test_an_error_inside_releases_the_lock(tmp_path):
    with pytest.raises(KeyError), locked_folder(tmp_path):
        raise KeyError
    with locked_folder(tmp_path):
        pass


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_one_line(tmp_path, monkeypatch, code):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(InputError, match="has no locks"), locked_folder(tmp_path / "out"):
        pass


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def truncate(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "truncate", truncate)
    with pytest.raises(InputError, match="out: No space left"), locked_folder(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("is_new", [False, True])
def test_a_preparation_that_fails_leaves_nothing(tmp_path, is_new):
    def prepare():
        raise KeyError

    folder = tmp_path / "out" if is_new else tmp_path
    with pytest.raises(KeyError), locked_folder(folder, "job", prepare):
        pass
    assert list(tmp_path.iterdir()) == []
