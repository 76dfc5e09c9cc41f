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
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.faults.artifacts import FLAGS, ROWS, SHARDS, TUNE, scratch_root
from tests.faults.torture import WARM, Reader, answer_of, digests, in_child, make_once, run_command
from tests.support.small_jobs import articles, no_survivors, write_parquet, write_tokenizer
from tests.support.waiting import wait_until

SECONDS = 300.0  #: until a command that lost a process must have ended


@dataclass(frozen=True)
class Killed:
    """A command, the folders it needs, and what must have the same bytes in the end."""

    name: str
    line: str
    needs: tuple[str, ...]
    made: tuple[str, ...]  #: patterns


BUILD = f"{SHARDS} --num-shards=3 --block-bytes=8000"
SHARD_FILES = ("out/*.arrow", "out/manifest.json", "out/tokenizer/*")
COMMANDS = (
    *(
        Killed(name, f"{BUILD} --out out {how}", ("good.parquet", "tokenizer"), SHARD_FILES)
        for name, how in (("shards", "--workers=1"), ("shards, 2 workers", "--workers=2"))
    ),
    Killed(
        "pretrain",
        f"pretrain data --out out --resume {FLAGS}",
        ("data",),
        ("out/run.json", "out/summary.json", "out/checkpoints/step-00000004/*", "out/tokenizer/*"),
    ),
    Killed(
        "finetune",
        f"finetune run {ROWS} --out out --resume {TUNE} --batch-size=8",
        ("run",),
        ("out/model.safetensors", "out/classifier.json", "out/tokenizer/*"),
    ),
    Killed("export", "export run --out out", ("run",), ("out/**/*",)),
)
ROUNDS = {"shards": 0.9, "shards, 2 workers": 0.1}  #: of all rounds; starting workers is slow


def prepare(folder: Path) -> None:
    write_parquet(folder / "good.parquet", articles(20), row_group_size=4)
    write_tokenizer(folder / "tokenizer", articles(20))
    run_command(folder, f"{BUILD} --out data --workers=1")
    run_command(folder, f"pretrain data --out run {FLAGS}")


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
                    run_command(Path(scratch), command.line)
                    seconds = time.monotonic() - started
                    self._right[command.name] = (digests(Path(scratch), *command.made), seconds)
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
            found = digests(folder, *command.made)
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
        is_running = not has_ended(child)
        if is_running:
            tree = [child, *descendants(child)]
            os.kill(draw.choice(tree), signal.SIGKILL)
            wait_until(lambda: has_ended(child), f"end of {command.name}", seconds=SECONDS)
    return is_running


def has_ended(child: int) -> bool:
    return os.waitpid(child, os.WNOHANG) != (0, 0)


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and those that these have."""
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *descendants(child)]
    return found


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
    make_once(inputs, prepare)
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
