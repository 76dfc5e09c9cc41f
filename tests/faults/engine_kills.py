"""`make engine-kills`: kill -9 of each process of a Flink or Spark cluster in the middle of a job.

    python -m tests.faults.engine_kills --cache work/engines [--only flink]

A process of the cluster is started again, as a supervisor would. A job that fails is run again.
Also: the task manager of a job without a token cache, and all token files, deleted while shards are
built. Shards and manifest must be those of a local job. Each row: what was killed, in which phase,
the exit codes of the commands, and what the first failure said.
"""

import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil

from clozeline.pipeline.commandline.beam_worker import SDK_WORKER
from tests.faults.engines import (
    SECONDS,
    Cluster,
    Engine,
    Trials,
    blocks_done,
    digests,
    isolated,
    small_text,
)
from tests.support.waiting import wait_until

#: By what a row says: a part of the command line, and which process of the cluster it is, if any.
VICTIMS: Final[dict[str, dict[str, tuple[str, int | None]]]] = {
    "flink": {
        "Python worker": (SDK_WORKER, None),
        "task manager": ("TaskManagerRunner", 1),
        "job server": (" -jar ", None),
        "submitter": ("", None),
        "job manager": ("StandaloneSession", 0),
    },
    "spark": {
        "Python worker": (SDK_WORKER, None),
        "executor": ("CoarseGrainedExecutorBackend", None),
        "job server": (" -jar ", None),
        "submitter": ("", None),
        "master": ("deploy.master.Master", 0),
    },
}


TOKENS: Final = "token files"  #: deleted, not killed


def trial(
    trials: Trials,
    engine: Engine,
    victim: str,
    phase: str,
    *,
    restarts: bool = True,
    has_cache: bool = True,
) -> bool:
    """Kill a process of a running job, run the command until it ends well, print a row."""
    what = victim if restarts else f"{victim}, without restarts"
    what += "" if has_cache else ", without a token cache"
    line = [*([] if has_cache else ["--token-cache=none"]), *trials.on(engine)]
    out = trials.folder / f"{engine.name}-{what}-{phase}".replace(" ", "-")
    if not restarts:
        name, text = engine.config
        engine = replace(engine, config=(name, text.replace("fixed-delay\n", "none\n")))
    part, number = VICTIMS[engine.name].get(victim, ("", None))
    codes, failures = [], []
    with Cluster(engine, trials.cache, trials.folder / f"{out.name}-cluster") as cluster:
        job = trials.start(out, *line)
        wait_until(lambda: has_begun(out, phase), f"{phase} for a kill", seconds=SECONDS)
        if victim == TOKENS:
            for file in Path(f"{out}.cache").glob("*.tokens"):
                file.unlink()
        elif part:
            kill_first(part)
        else:
            job.kill()
        if number is not None:
            cluster.start(number)
        for _ in range(3):  # runs: the first one, and again until one ends well
            _, said = job.communicate(timeout=SECONDS)
            codes.append(job.returncode)
            failures += [line for line in said.splitlines() if line.startswith("Error: ")]
            if job.returncode == 0:
                break
            job = trials.start(out, *line)
    same = digests(out) == digests(trials.folder / "local")
    print(
        f"| {engine.name} | {what} | {phase} | {', '.join(map(str, codes))} | "
        f"{'same' if same else 'OTHER'} | {' / '.join(failures)[:200]} |",
        flush=True,
    )
    return same and codes[-1] == 0


def has_begun(out: Path, phase: str) -> bool:
    """Whether the phase has finished some items."""
    return blocks_done(out) >= 3 if phase == "tokenizing" else any(out.glob("*.arrow"))


def kill_first(part: str) -> None:
    """Kill the first process of ours whose command line has this part."""
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if part in " ".join(one.cmdline()):
                one.kill()
                return
    raise AssertionError(f"no process has {part} in its command line")


def main() -> None:
    options, engines = isolated("tests.faults.engine_kills")
    trials = Trials(options.cache, small_text(options.size))
    trials.row("local", "--workers=2")
    right = []
    for engine in engines:
        for victim in VICTIMS[engine.name]:
            for phase in ("tokenizing", "building"):
                right.append(trial(trials, engine, victim, phase))
        if engine.name == "flink":
            right.append(trial(trials, engine, "task manager", "tokenizing", restarts=False))
            right.append(trial(trials, engine, "task manager", "building", has_cache=False))
            right.append(trial(trials, engine, TOKENS, "building"))
    sys.exit(not all(right))


if __name__ == "__main__":
    main()
