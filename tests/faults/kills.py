"""`make kills`: commands killed at random moments, then run again and compared, byte for byte.

    python -m tests.faults.kills --rounds 100 --out work/kills

A round starts a command in a forked, warm process, sends SIGKILL to a random process of its tree at
a random moment, runs the same command again and compares what it wrote with an undisturbed run.
Round i is drawn from (seed, command, i); a stopped call continues where it was.
"""

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.faults.artifacts import FLAGS, ROWS, scratch_root
from tests.faults.torture import WARM, Reader, answer_of, in_child, run_command
from tests.support.small_jobs import articles, no_survivors, write_parquet, write_tokenizer

SECONDS = 300.0  #: until a command that lost a process must have ended


@dataclass(frozen=True)
class Killed:
    """A command, the folders it needs, and what must have the same bytes in the end."""

    name: str
    line: str
    needs: tuple[str, ...]
    made: tuple[str, ...]  #: patterns


SHARDS = (
    "shards good.parquet --tokenizer tokenizer --out out --num-shards=3 --validation=0.2 "
    "--max-seq-length=32 --block-bytes=8000 --workers="
)
TUNE = "--text=content --label=label --epochs=1 --learning-rate=1e-3 --no-baseline --batch-size=8"
SHARD_FILES = ("out/*.arrow", "out/manifest.json", "out/tokenizer/*")
COMMANDS = (
    Killed("shards", f"{SHARDS}1", ("good.parquet", "tokenizer"), SHARD_FILES),
    Killed("shards, 2 workers", f"{SHARDS}2", ("good.parquet", "tokenizer"), SHARD_FILES),
    Killed(
        "pretrain",
        f"pretrain data --out out --preset=bert-tiny --resume --save-every=1 {' '.join(FLAGS)}",
        ("data",),
        ("out/run.json", "out/summary.json", "out/checkpoints/step-00000004/*", "out/tokenizer/*"),
    ),
    Killed(
        "finetune",
        f"finetune run {ROWS} --out out --resume {TUNE}",
        ("run",),
        ("out/model.safetensors", "out/classifier.json", "out/tokenizer/*", "out/cells"),
    ),
    Killed("export", "export run --out out", ("run",), ("out/**/*",)),
)
ROUNDS = {"shards": 0.9, "shards, 2 workers": 0.1}  #: of all rounds; starting workers is slow


def prepare(folder: Path) -> None:
    """What the commands read."""
    write_parquet(folder / "good.parquet", articles(20), row_group_size=4)
    write_tokenizer(folder / "tokenizer", articles(20))
    data = SHARDS.replace("--out out", "--out data") + "1"
    run_command(folder, tuple(data.split()))
    run = f"pretrain data --out run --preset=bert-tiny {' '.join(FLAGS)}"
    run_command(folder, tuple(run.split()))


class Kills:
    """The inputs and the right bytes of each command, and one round at a time."""

    def __init__(self, folder: Path, *, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self._right: dict[str, tuple[str, float]] = {}

    def right(self, command: Killed) -> tuple[str, float]:
        """Digests of what the command writes, and the seconds that its second run takes."""
        if command.name not in self._right:
            for _ in range(2):
                with tempfile.TemporaryDirectory(dir=scratch_root()) as scratch:
                    self._link(command, Path(scratch))
                    started = time.monotonic()
                    run_command(Path(scratch), tuple(command.line.split()))
                    seconds = time.monotonic() - started
                    self._right[command.name] = (digests(command, Path(scratch)), seconds)
        return self._right[command.name]

    def round(self, command: Killed, number: int) -> str:
        """ "same", or what went wrong."""
        draw = random.Random(f"{self.seed}/{command.name}/{number}")
        right, seconds = self.right(command)
        with tempfile.TemporaryDirectory(dir=scratch_root()) as scratch:
            folder = Path(scratch)
            self._link(command, folder)
            is_killed = start_and_kill(command, folder, draw.uniform(0, seconds), draw)
            line = Reader(tuple(command.line.split()))
            again = in_child(lambda: answer_of(line, folder), seconds=SECONDS)
            if again is None or again.exit_code or again.traceback:
                return f"the second call failed: {again}"
            found = digests(command, folder)
        if found != right:
            return f"other bytes: {set(found.splitlines()) ^ set(right.splitlines())}"
        return "same" if is_killed else "over before the kill"

    def _link(self, command: Killed, folder: Path) -> None:
        for name in command.needs:
            (folder / name).symlink_to(self.folder / name)


def start_and_kill(command: Killed, folder: Path, moment: float, draw: random.Random) -> bool:
    """Start the command and kill it at that moment; return whether it was still running."""
    child = os.fork()
    if child == 0:
        os.setsid()
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 2)
        try:
            answer_of(Reader(tuple(command.line.split())), folder)
        finally:
            os._exit(0)
    with no_survivors(child):
        time.sleep(moment)
        is_running = os.waitpid(child, os.WNOHANG) == (0, 0)
        if is_running:
            tree = [child, *descendants(child)]
            os.kill(draw.choice(tree), signal.SIGKILL)
            deadline = time.monotonic() + SECONDS
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{command.name} goes on for ever without a process of its")
                time.sleep(0.01)
    return is_running


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *descendants(child)]
    return found


def digests(command: Killed, folder: Path) -> str:
    """A line for each file that counts."""
    paths = sorted({path for pattern in command.made for path in folder.glob(pattern)})
    files = [path for path in paths if path.is_file() and path.name != ".lock"]
    return "".join(
        f"{path.relative_to(folder)} {sha256(path.read_bytes()).hexdigest()}\n" for path in files
    )


def main() -> None:
    """Run the rounds that are missing; exit code 1 if any round ended badly."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=100, help="for each command")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("work/kills"))
    options = parser.parse_args()
    for module in WARM:
        importlib.import_module(module)
    options.out.mkdir(parents=True, exist_ok=True)
    inputs, log = options.out.absolute() / "inputs", options.out.absolute() / "rounds.jsonl"
    if not (inputs / ".made").exists():
        shutil.rmtree(inputs, ignore_errors=True)
        inputs.mkdir()
        prepare(inputs)
        (inputs / ".made").touch()
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    done = {(line["command"], line["round"], line["seed"]) for line in lines}
    kills = Kills(inputs, seed=options.seed)
    for number in range(options.rounds):
        for command in COMMANDS:
            wanted = round(options.rounds * ROUNDS.get(command.name, 1))
            key = (command.name, number, options.seed)
            if number >= wanted or key in done:
                continue
            ended = kills.round(command, number)
            lines.append(dict(zip(("command", "round", "seed"), key, strict=True), ended=ended))
            with log.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")
            if ended not in ("same", "over before the kill"):
                print(f"{command.name}, round {number}: {ended}", file=sys.stderr)
    for command in COMMANDS:
        counts = Counter(line["ended"] for line in lines if line["command"] == command.name)
        print(f"{command.name}: {counts.total()} rounds, {dict(counts)}")
    sys.exit(not {line["ended"] for line in lines} <= {"same", "over before the kill"})


if __name__ == "__main__":
    main()
