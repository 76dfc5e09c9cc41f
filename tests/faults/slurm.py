"""`make slurm`: the recipes of deploy/ as jobs of Slurm, which stops, requeues and loses them.

    python -m tests.faults.slurm --out work/slurm [--only requeue]

The cluster is two hosts in Linux namespaces (`slurm_cluster.py`). `deploy/slurm.sh` pretrains on
both, a process each; the metrics of every step and the last checkpoint must equal those of two
processes without Slurm, byte for byte. `deploy/slurm-shards.sh` runs as an array of four; shards
and manifest must equal a local job's.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from tests.faults.engines import digests
from tests.faults.hosts import OPTIONS, UnexpectedError, options_of, print_rows
from tests.faults.hosts import compare as compare_runs
from tests.faults.network_hosts import TwoHosts, enter_namespaces
from tests.faults.slurm_cluster import SECONDS, SlurmCluster, check_programs
from tests.support.small_data import write_data_set
from tests.support.small_jobs import ROOT, clozeline_ok
from tests.support.waiting import wait_until

FAULT_AT: Final = 30  #: step
BLOCKS_DONE: Final = 2
PATIENCE: Final = 1800.0  #: seconds, for a job
LAUNCH: Final = (sys.executable, ROOT / "deploy" / "launch.py")
OVER: Final = {"COMPLETED", "CANCELLED", "FAILED", "NODE_FAIL", "TIMEOUT", "OUT_OF_MEMORY"}
TEXT: Final = ("sample:articles?size=10MB", "--block-bytes=500000", "--num-shards=6")
SHARDS: Final = "deploy/slurm-shards.sh"
PRETRAIN: Final = "deploy/slurm.sh"


@dataclass(frozen=True)
class Trial:
    name: str
    happen: Callable[["Job"], str]  #: once it has made progress; returns what was seen
    script: str = PRETRAIN
    sbatch: str = "--nodes 2"
    steps: int = 120
    wait: str = "10m"  #: of the elements of an array, for others

    @property
    def reference(self) -> str:
        """The folder of what is written without Slurm."""
        return "local-shards" if self.script == SHARDS else f"local-run-of-{self.steps}"


class Job:
    """One line of the manual as a job: submitted, watched, submitted again."""

    def __init__(self, cluster: SlurmCluster, folder: Path, trial: Trial) -> None:
        self.cluster, self.out, self.log = cluster, folder / "out", folder / "job.log"
        self._line = [*trial.sbatch.split(), trial.script, *arguments(trial, folder.parent)]
        self._line += ["--out", self.out]
        self.submit()

    def submit(self) -> None:
        """Submit it, or submit it again; what it prints goes to the end of its log."""
        self.since = time.monotonic()
        self.id = self.cluster.submit("--output", self.log, "--open-mode=append", *self._line)

    def reach(self) -> None:
        """Wait until training is at a step, or some blocks are tokenized; the fault comes now."""
        self.wait(self._has_progress, "progress")
        self.since = time.monotonic()

    def _has_progress(self) -> bool:
        with suppress(FileNotFoundError):
            return (self.out / "metrics.jsonl").read_text().count("\n") > FAULT_AT
        return len(list((self.out / ".cache").glob("*.tokens"))) > BLOCKS_DONE

    def wait(self, is_done: Callable[[], object], what: str) -> None:
        """Wait until `is_done` is true; the job may not end before."""
        wait_until(lambda: is_done() or self.is_over(), what, seconds=SECONDS)
        if not is_done():
            raise UnexpectedError(f"no {what}, but {self.states()}")

    def states(self) -> list[str]:
        """The state of the job, or of each element of the array."""
        return re.findall(r"\bJobState=(\w+)", self._show())

    def is_over(self) -> bool:
        """Whether nothing of the job runs or waits."""
        return set(self.states()) <= OVER

    def ends(self, *states: str) -> str:
        """Wait until the job is over, in one of these states, and say which."""
        wait_until(self.is_over, "end of the job", seconds=PATIENCE)
        found = sorted(set(self.states()))
        if not set(found) <= set(states):
            raise UnexpectedError(f"the job is {found}")
        return " and ".join(found)

    def restarts(self) -> int:
        """How often Slurm has queued the job again; an array's elements together."""
        return sum(map(int, re.findall(r"\bRestarts=(\d+)", self._show())))

    def requeued(self) -> str:
        """Wait until the job is in the queue again, and say when that was."""
        self.wait(self.restarts, "requeue")
        return f"requeued after {self.seconds()}"

    def saved(self) -> str:
        """At which step it has stopped, if it has saved that."""
        steps = re.findall(r"Stopped at step (\d+)", self.log.read_text())
        return f"a checkpoint of step {steps[0]}" if steps else "no checkpoint at its end"

    def control(self, *words: object) -> None:
        self.cluster.ask("scontrol", *words)

    def _show(self) -> str:
        return self.cluster.ask("scontrol", "show", "job", "-o", self.id)

    def seconds(self) -> str:
        return f"{time.monotonic() - self.since:.0f} s"


def arguments(trial: Trial, folder: Path) -> list[object]:
    """Of the command, without its output folder."""
    if trial.script == SHARDS:
        return [*TEXT, "--tokenizer", folder / "tokenizer", f"--wait={trial.wait}"]
    return [folder / "shards", *OPTIONS.split(), f"--max-steps={trial.steps}"]


def nothing(job: Job) -> str:
    return job.ends("COMPLETED")


def cancelled(job: Job) -> str:
    job.cluster.ask("scancel", job.id)
    ended = f"{job.ends('CANCELLED')} after {job.seconds()}, {job.saved()}"
    job.submit()
    return f"{ended}; submitted again: {job.ends('COMPLETED')}"


def requeued(job: Job) -> str:
    job.control("requeue", job.id)
    ended = f"{job.requeued()}; {job.ends('COMPLETED')}"
    return f"{ended}; {job.saved()}"


def time_limit(job: Job) -> str:
    ended = f"{job.requeued()}, by exit code 75; {job.ends('COMPLETED')}"
    return f"{ended} after {job.restarts()} restarts; {job.saved()}"


def preempted(job: Job) -> str:
    job.cluster.submit(
        "-p", "urgent", "--nodes=2", "--exclusive", "--output=/dev/null", "--wrap=true"
    )
    ended = f"{job.requeued()}; {job.ends('COMPLETED')}"
    return f"{ended}; {job.saved()}"


def node_killed(job: Job) -> str:
    job.cluster.hosts.b.kill_everything()
    seen = job.requeued()
    job.cluster.start_node(job.cluster.hosts.b)
    return f"{seen}; host-b starts again: {job.ends('COMPLETED')}"


def node_cut_off(job: Job) -> str:
    """Slurm cannot end what runs on the node; when the link is back, that is still there."""
    job.cluster.hosts.b.set_link("down")
    seen = job.requeued()
    job.cluster.hosts.b.set_link("up")
    return f"{seen}; the link is back: {job.ends('COMPLETED')}"


def node_down(job: Job) -> str:
    job.control("update", "NodeName=host-b", "State=DOWN", "Reason=trial")
    seen = job.requeued()
    job.wait(lambda: job.states() == ["PENDING"], "end of the old processes")
    job.control("update", "NodeName=host-b", "State=RESUME")
    return f"{seen}, {job.saved()}; resumed: {job.ends('COMPLETED')}"


def element_cancelled(job: Job) -> str:
    job.cluster.ask("scancel", f"{job.id}_1")
    job.wait(job.restarts, "requeue")
    seen = f"the others exit with 75 and are queued again after {job.seconds()}"
    job.cluster.ask("scancel", job.id)
    job.ends("CANCELLED")
    job.submit()
    return f"{seen}; all of them submitted again: {job.ends('COMPLETED')}"


def element_requeued(job: Job) -> str:
    job.control("requeue", f"{job.id}_1")
    return f"{job.requeued()}; {job.ends('COMPLETED')}"


ARRAY: Final = "--array 0-3 --cpus-per-task 16"  # two on each node
TWO_MINUTES: Final = "--nodes 2 --time 2 --signal TERM@30"
TRIALS: Final = (
    Trial("pretraining: nothing", nothing),
    Trial("pretraining: scancel", cancelled),
    Trial("pretraining: scontrol requeue", requeued),
    Trial("pretraining: preempted", preempted, steps=600),  # Slurm takes some seconds to do it
    Trial("pretraining: kill -9 of all of host-b", node_killed),
    Trial("pretraining: host-b cut off", node_cut_off),
    Trial("pretraining: host-b set down", node_down),
    Trial("shards: nothing", nothing, SHARDS, ARRAY),
    Trial("shards: scancel of an element", element_cancelled, SHARDS, ARRAY, wait="10s"),
    Trial("shards: scontrol requeue of an element", element_requeued, SHARDS, ARRAY),
    Trial("shards: kill -9 of all of host-b", node_killed, SHARDS, ARRAY),
    # Slurm looks at the clock every 30 seconds: the signal comes after 60 to 90 seconds.
    Trial("pretraining: time limit", time_limit, PRETRAIN, TWO_MINUTES, steps=10_000),
)


def write_reference(trial: Trial, folder: Path) -> None:
    out = folder / trial.reference
    line = [*map(str, arguments(trial, folder)), "--out", str(out)]
    if trial.script == SHARDS:
        clozeline_ok("shards", *line)
        return
    two = [*LAUNCH, "--standalone", "--nproc-per-node=2", "--no-python", "clozeline", "pretrain"]
    with (folder / f"{trial.reference}.log").open("wb") as log:
        subprocess.run([*two, *line], cwd=ROOT, stdout=log, stderr=log, check=True)


def compare(trial: Trial, out: Path, reference: Path) -> None:
    """Every byte of shards and manifest; every number and the last checkpoint of a run."""
    if trial.script == PRETRAIN:
        compare_runs(out, reference)
    elif digests(out) != digests(reference):
        raise UnexpectedError(f"{out} differs from {reference}")


def run_trial(trial: Trial, folder: Path) -> str:
    """What was seen. Raises UnexpectedError if something else was, or if bytes differ."""
    if not (folder / trial.reference).exists():
        write_reference(trial, folder)
    here = folder / re.sub(r"\W+", "-", trial.name)
    here.mkdir()
    with TemporaryDirectory(prefix="slurm-") as sockets, TwoHosts(here) as hosts:
        try:
            job = Job(SlurmCluster(hosts, here, Path(sockets)), here, trial)
            if trial.happen not in (nothing, time_limit):
                job.reach()
            seen = trial.happen(job)
        except AssertionError as error:
            raise UnexpectedError(str(error)) from error
    compare(trial, job.out, folder / trial.reference)
    return seen


def table(folder: Path, wanted: str) -> bool:
    """Print a row for each trial, as Markdown; return whether all went well."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_data_set(folder / "shards", train=(40,) * 8)
    clozeline_ok("tokenizer", TEXT[0], "--vocab-size=2000", "--out", folder / "tokenizer")
    print("| What happens | What is seen | Bytes |\n|---|---|---|", flush=True)
    trials = (trial for trial in TRIALS if re.search(wanted, trial.name))
    return print_rows((trial.name, partial(run_trial, trial, folder)) for trial in trials)


def main() -> None:
    """Make the namespaces, and run the trials in them; exit code 2 where that is not possible."""
    options = options_of(__doc__, out="work/slurm")
    enter_namespaces("tests.faults.slurm", check_programs)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # A process on each host; jobs get these variables, too.
    os.environ |= {"GPUS": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    sys.exit(not table(options.out.absolute(), options.only))


if __name__ == "__main__":
    main()
