"""`make torture`: mutations of real files, each answered by a command in a process of its own.

    python -m tests.faults.torture --trials 10000 --out work/torture

Trial i is drawn from (seed, i), so a stopped call continues where it was. Each ends as one of

    named     one clear line that names the file, and the exit code of a refusal
    harmless  the answer is that of the whole files
    silent    another answer without a word
    unclear   an error that does not name the file, or in more than one line
    crash     a traceback, or death by a signal
    hang      no answer after two minutes

The last four must not occur. OUT holds a line for each trial.
"""

import argparse
import importlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

import click
from click.testing import CliRunner

from clozeline.train.cli import main as clozeline
from tests.faults.artifacts import (
    ARTIFACTS,
    Artifact,
    Reader,
    files_of,
    scratch_root,
    untouched,
    write_artifacts,
)
from tests.faults.mutations import Mutation, mutate

FORK = get_context("fork")
SECONDS = 120.0
MADE = ".made"  #: all artifacts are there
GOOD = ("named", "harmless")
BAD = ("silent", "unclear", "crash", "hang")


#: Imported before the first fork: importing torch takes longer than any trial.
WARM = [
    "clozeline.train.inference.fill",
    "clozeline.train.inference.predict",
    "clozeline.train.export.export",
    "clozeline.train.finetuning.compare",
    "clozeline.train.pretraining.pretrain",
    "clozeline.train.pretraining.start",
    "clozeline.train.evaluation.evaluate",
    "clozeline.train.export.model_card",
    "clozeline.pipeline.verify.verify",
    "clozeline.pipeline.report.inspect",
    "clozeline.pipeline.report.dataset_chapter",
    "torch.utils.tensorboard",
    "torch.distributed",
    "regex",
    "jinja2",
    "mwparserfromhell",
    "pyarrow.parquet",
    "pyarrow.compute",
]


@dataclass(frozen=True)
class Answer:
    exit_code: int
    result: str  #: what it printed, or digests of what it wrote
    errors: tuple[str, ...]  #: lines of standard error, without progress bars
    traceback: str  #: of an error that is not one of ours


def in_child(work: Callable[[], Answer], *, seconds: float = SECONDS) -> Answer | None:
    """The answer of a forked process; None if it gives none in time."""
    ours, theirs = FORK.Pipe(duplex=False)

    def send() -> None:
        theirs.send(work())
        os._exit(0)  # whatever it has left running

    child = FORK.Process(target=send)
    child.start()
    theirs.close()
    if not ours.poll(seconds):
        child.kill()
        child.join()
        return None
    answer = None
    with ours, suppress(EOFError):
        answer = ours.recv()
    child.join()
    return answer or Answer(child.exitcode or 0, "", (), f"died with {child.exitcode}")


def answer_of(reader: Reader, folder: Path) -> Answer:
    """Run the reader in a folder, in this process."""
    os.chdir(folder)
    command = reader.command
    if isinstance(command, tuple):
        done = CliRunner().invoke(clozeline, list(command))
    else:
        group = type(clozeline)("reader")
        group.add_command(click.Command("read", callback=command))
        done = CliRunner().invoke(group, ["read"])
    is_ours = done.exception is None or isinstance(done.exception, SystemExit)
    shown = "" if is_ours else "".join(traceback.format_exception(done.exception))
    lines = re.split(r"[\r\n]+", done.stderr)
    errors = tuple(line for line in lines if line.strip() and "%|" not in line)
    result = digests(folder, reader.answer) if reader.answer else done.stdout
    return Answer(done.exit_code, result, errors, shown)


def digests(folder: Path, *patterns: str) -> str:
    """A line for each file that a command has written."""
    paths = sorted({path for pattern in patterns for path in folder.glob(pattern)})
    files = [path for path in paths if path.is_file() and path.name != ".lock"]
    return "".join(
        f"{path.relative_to(folder)} {sha256(path.read_bytes()).hexdigest()}\n" for path in files
    )


def verdict(
    answer: Answer | None, whole: Answer, *, name: Path, reader: Reader, kept: list[str] | None
) -> str:
    """How a trial ended; `kept` are the documents that a mutated text must still have."""
    if answer is None:
        return "hang"
    if answer.traceback:
        return "crash"
    names = {name.name, *(str(parent) for parent in name.parents if parent.name)}
    is_named = any(part in line for line in answer.errors for part in names)
    if answer.exit_code:
        last = answer.errors[-1] if answer.errors else ""
        findings = answer.errors[:-1] if 1 in reader.exit_codes else ()
        is_clear = last.startswith("Error: ") and len(answer.errors) - len(findings) == 1
        expected = answer.exit_code in reader.exit_codes
        return "named" if is_named and is_clear and expected else "unclear"
    if kept is not None:
        is_whole = set(kept) <= set(json.loads(answer.result))
        return "harmless" if is_whole else "named" if is_named else "silent"
    if answer.result == whole.result:
        return "harmless"
    return "named" if is_named else "silent"


class Torture:
    """The artifacts, the answers that are right, and one trial at a time."""

    def __init__(self, folder: Path, *, seed: int = 0) -> None:
        self.folder, self.seed = folder, seed
        for module in WARM:
            importlib.import_module(module)
        make_once(folder, partial(write_artifacts, run=run_command))
        self._whole: dict[tuple[str, int], Answer] = {}

    def draw(self, trial: int) -> tuple[Artifact, int, Path, Mutation]:
        draw = random.Random(f"{self.seed}/{trial}")
        artifact = ARTIFACTS[trial % len(ARTIFACTS)]
        reader = draw.randrange(len(artifact.readers))
        name = draw.choice(files_of(artifact, self.folder))
        return artifact, reader, name, mutate((self.folder / name).read_bytes(), draw)

    def run(self, trial: int) -> tuple[str, dict[str, object]]:
        """How a trial ended, and what there is to say about it."""
        artifact, number, name, mutation = self.draw(trial)
        reader = artifact.readers[number]
        whole = self.whole(artifact, number)
        with self._copy(artifact) as copy:
            (copy / name).write_bytes(mutation.data)
            answer = in_child(lambda: answer_of(reader, copy))
        data = (self.folder / name).read_bytes()
        kept = untouched(data, mutation.start, mutation.stop) if artifact.is_text else None
        ended = verdict(answer, whole, name=name, reader=reader, kept=kept)
        command = reader.command if isinstance(reader.command, tuple) else "function"
        about = {"trial": trial, "artifact": artifact.name, "file": str(name)}
        about |= {"kind": mutation.kind, "start": mutation.start, "stop": mutation.stop}
        said = answer.errors[-1:] if answer else ()
        shown = answer.traceback[-1500:] if answer else ""
        return ended, about | {"command": command, "ended": ended, "said": said, "crash": shown}

    def whole(self, artifact: Artifact, number: int) -> Answer:
        """The answer for the files as they were made."""
        key = (artifact.name, number)
        if key not in self._whole:
            with self._copy(artifact) as copy:
                answer = in_child(lambda: answer_of(artifact.readers[number], copy))
            assert answer is not None, key
            assert answer.exit_code == 0, (key, answer)
            assert answer.result, key
            self._whole[key] = answer
        return self._whole[key]

    @contextmanager
    def _copy(self, artifact: Artifact) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(
            dir=scratch_root(), prefix="clozeline-torture-"
        ) as scratch:
            for folder in artifact.folders:
                shutil.copytree(self.folder / folder, Path(scratch) / folder)
            yield Path(scratch)


def make_once(folder: Path, make: Callable[[Path], object]) -> None:
    """Fill a folder, unless it was filled to the end."""
    if not (folder / MADE).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        (folder / MADE).touch()


def run_command(folder: Path, line: str) -> None:
    """Run a command in a folder, in a child. Raises RuntimeError where it fails."""
    command = Reader(tuple(line.split()))
    answer = in_child(lambda: answer_of(command, folder), seconds=1200.0)
    if answer is None or answer.exit_code:
        raise RuntimeError(f"{line}: {answer}")


def totals(lines: list[dict[str, object]]) -> str:
    """ "9 tried: 7 named, 2 harmless, 0 silent, ..." """
    counts = Counter(str(line["ended"]) for line in lines)
    parts = ", ".join(f"{counts[ended]:,} {ended}" for ended in (*GOOD, *BAD))
    return f"{len(lines):,} tried: {parts}"


def main() -> None:
    """Run the trials that are missing; exit code 1 if any trial ended badly."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("work/torture"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    log = (options.out / f"trials-{options.seed}.jsonl").absolute()
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    torture = Torture(options.out.absolute() / "whole", seed=options.seed)
    for trial in range(len(lines), options.trials):
        ended, about = torture.run(trial)
        lines.append(about)
        with log.open("a") as file:
            file.write(json.dumps(about) + "\n")
        if ended in BAD:
            print(f"trial {trial}: {about}", file=sys.stderr)
        if trial % 100 == 99:
            print(totals(lines), flush=True)
    by_artifact = {str(line["artifact"]) for line in lines}
    for name in sorted(by_artifact):
        print(f"  {name:24}{totals([line for line in lines if line['artifact'] == name])}")
    print(totals(lines))
    sys.exit(any(line["ended"] in BAD for line in lines))


if __name__ == "__main__":
    main()
