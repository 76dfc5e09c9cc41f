"""`make hosts`: two machines train together, and one of them dies, is cut off, or has a full disk.

    python -m tests.faults.hosts --out work/hosts

The machines are Linux network namespaces with a cable between them (`network_hosts.py`). Each runs
the manual's line for plain hosts, `HOST=... NODES=2 deploy/pretrain.sh ...`. After
every fault, training is continued as the manual says, and the metrics of each step and the last
checkpoint must equal those of two undisturbed hosts, byte for byte.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults.network_hosts import ADDRESSES, Host, TwoHosts, enter_namespaces
from tests.support.small_data import write_data_set
from tests.support.small_training import assert_same_run, numbers
from tests.support.waiting import wait_until

STEPS, FAULT_AT = 120, 30
TIMEOUT = 20  # seconds, of `pretrain`
PATIENCE = 180.0  # seconds for everything else; more than torchrun takes for anything
BIN = Path(sys.executable).parent
PRETRAIN_SH = Path(__file__).parents[2] / "deploy" / "pretrain.sh"
OPTIONS = (
    "--preset=bert-tiny --precision=fp32 --batch-size=8 --log-every=1 --eval-every=0 "
    f"--save-every=20 --max-steps={STEPS} --timeout={TIMEOUT}s"
)
SMALL_DISK = 40_000_000  # bytes, of which a run needs 18 million


class UnexpectedError(Exception):
    """A trial did not go as expected; the message is its row."""


@dataclass(frozen=True)
class Fault:
    """What happens to a run, and whether torchrun restarts failed processes."""

    name: str
    happen: Callable[["Run", Host, Host], str]  # after some steps; returns what was seen
    restarts: int = 3
    out: str = "{folder}/run"


class Run:
    """The same line of the manual on both hosts."""

    def __init__(self, hosts: TwoHosts, folder: Path, fault: Fault) -> None:
        self.hosts, self.folder = hosts, folder
        self.out = Path(fault.out.format(folder=folder).removeprefix("file://"))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        shards, out = folder.parent / "shards", fault.out.format(folder=folder)
        self._command = [PRETRAIN_SH, str(shards), "--out", out, *OPTIONS.split()]
        self._restarts = fault.restarts
        self.since = time.monotonic()

    def start(self, *hosts: Host) -> None:
        for host in hosts:
            env = {
                "HOST": ADDRESSES[0],
                "NODES": "2",
                "GPUS": "1",  # processes of a host
                "RESTARTS": str(self._restarts),
                "PATH": f"{BIN}:{os.environ['PATH']}",
                "OMP_NUM_THREADS": "1",
                "CLOZELINE_CACHE": str(self.folder / f"cache-of-{host.name}"),
            }
            self._processes[host.name] = host.start(self._command, log=self._log(host), env=env)

    def start_and_reach(self, step: int) -> None:
        """Start both hosts and wait until training is at a step; the fault comes now."""
        self.start(self.hosts.a, self.hosts.b)
        wait_until(lambda: len(numbers(self.out)) > step, f"step {step}", seconds=PATIENCE)
        self.since = time.monotonic()

    def says(self, host: Host, text: str) -> str:
        """Wait until the host has printed the text; say when that was."""
        wait_until(lambda: text in self._log(host).read_text(), f'"{text}"', seconds=PATIENCE)
        return f'{host.name} prints "{text}" after {self.seconds()}'

    def ends(self, host: Host, *exit_codes: int) -> str:
        """Wait for the end of the host's command, with one of these exit codes."""
        process = self._processes[host.name]
        wait_until(lambda: process.poll() is not None, f"end on {host.name}", seconds=PATIENCE)
        if process.returncode not in exit_codes:
            raise UnexpectedError(f"the command on {host.name} ended with {process.returncode}")
        return f"{host.name} ends with {process.returncode} after {self.seconds()}"

    def finish(self) -> None:
        self.ends(self.hosts.a, 0)
        self.ends(self.hosts.b, 0)

    def terminate(self, host: Host) -> None:
        """SIGTERM to the host's command, as Slurm and Kubernetes send it."""
        self._processes[host.name].send_signal(signal.SIGTERM)

    def step(self) -> int:
        return int(numbers(self.out)[-1]["step"])

    def seconds(self) -> str:
        return f"{time.monotonic() - self.since:.0f} s"

    def _log(self, host: Host) -> Path:
        return self.folder / f"{host.name}.log"


def nothing(run: Run, a: Host, b: Host) -> str:
    return "the run that all others are compared with"


def worker_host_killed(run: Run, a: Host, b: Host) -> str:
    b.kill_everything()
    seen = run.says(a, f"process 1 on {b.name} stopped answering")
    run.start(b)
    return f"{seen}; {b.name} starts again, and both continue"


def rendezvous_host_killed(run: Run, a: Host, b: Host) -> str:
    a.kill_everything()
    seen = run.says(b, "the rendezvous store, on the machine of process 0, stopped answering")
    ended = run.ends(b, 1)
    run.start(a, b)
    return f"{seen}; {ended}; started again, both continue"


def power_lost(run: Run, a: Host, b: Host) -> str:
    """No connection is closed: the other host hears nothing at all."""
    b.set_link("down")
    b.kill_everything()
    seen = run.says(a, f"process 1 on {b.name} stopped answering")
    b.set_link("up")
    run.start(b)
    return f"{seen}; {b.name} starts again, and both continue"


def both_miss_the_other(run: Run, a: Host, b: Host) -> list[str]:
    b.set_link("down")
    on_a = run.says(a, f"process 1 on {b.name} stopped answering")
    return [on_a, run.says(b, "process 0, stopped answering")]


def link_cut(run: Run, a: Host, b: Host) -> str:
    """The command on host-b waits for the rendezvous until the link is back."""
    seen = [*both_miss_the_other(run, a, b), run.ends(a, 1)]
    b.set_link("up")
    seen.append(run.ends(b, 1))
    run.start(a, b)
    return f"{'; '.join(seen)}; started again, both continue"


def link_cut_with_restarts(run: Run, a: Host, b: Host) -> str:
    seen = both_miss_the_other(run, a, b)
    b.set_link("up")
    return f"{'; '.join(seen)}; the link is back, and both continue by themselves"


def link_cut_for_a_moment(run: Run, a: Host, b: Host) -> str:
    b.set_link("down")
    before = run.step()
    time.sleep(TIMEOUT / 4)
    waited = run.step() - before
    b.set_link("up")
    run.finish()
    logs = [(run.folder / f"{host.name}.log").read_text() for host in (a, b)]
    if any("stopped answering" in log for log in logs):
        raise UnexpectedError("a process was given up")
    return f"{waited} steps during {TIMEOUT / 4:.0f} s; then the same processes continue"


def full_disk(run: Run, a: Host, b: Host) -> str:
    """The disk of the folder that both hosts share is full."""
    ballast = run.out.parent / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(run.out).free)
    seen = [run.says(a, "free disk space and add --resume"), run.ends(a, 1), run.ends(b, 1)]
    ballast.unlink()
    run.start(a, b)
    return f"{'; '.join(seen)}; with room again, both continue"


def terminated(run: Run, a: Host, b: Host) -> str:
    run.terminate(b)
    seen = [run.says(a, "checkpoint saved"), run.ends(a, 75), run.ends(b, 75)]
    run.start(a, b)
    return f"{'; '.join(seen)}; started again, both continue"


def evicted(run: Run, a: Host, b: Host) -> str:
    run.terminate(b)
    seen = [run.says(a, "checkpoint saved"), run.ends(b, 75)]
    run.start(b)
    return f"{'; '.join(seen)}; {b.name} starts again, and both continue"


FAULTS = (
    Fault("nothing", nothing),
    Fault("kill -9 of host-b", worker_host_killed),
    Fault("kill -9 of host-a, the rendezvous", rendezvous_host_killed),
    Fault("host-b loses power", power_lost),
    Fault("link cut, no restarts", link_cut, restarts=0),
    Fault("link cut, with restarts", link_cut_with_restarts),
    Fault("link cut for a moment", link_cut_for_a_moment),
    Fault("disk of --out full", full_disk, restarts=0, out="{folder}/small/run"),
    Fault("SIGTERM of host-b, no restarts", terminated, restarts=0),
    Fault("SIGTERM of host-b, with restarts", evicted),
    Fault("kill -9 of host-b, run in a store", worker_host_killed, out="file://{folder}/store/run"),
    Fault(
        "kill -9 of host-a, run in a store", rendezvous_host_killed, out="file://{folder}/store/run"
    ),
)


def trial(fault: Fault, folder: Path) -> str:
    """What was seen. Raises UnexpectedError if something else was, or if numbers differ."""
    here = folder / re.sub(r"\W+", "-", fault.name)
    shutil.rmtree(here, ignore_errors=True)
    (here / "small").mkdir(parents=True)
    (here / "store").mkdir()
    # Before the hosts are made: they get copies of the mounts that are there.
    small = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "small", str(here / "small")]
    subprocess.run(small, check=True)
    try:
        with TwoHosts(here) as hosts:
            run = Run(hosts, here, fault)
            run.start_and_reach(FAULT_AT)
            seen = fault.happen(run, hosts.a, hosts.b)
            run.finish()
        compare(run.out, folder / "nothing" / "run")
        return seen
    finally:
        subprocess.run(["umount", str(here / "small")], check=True)


def compare(run: Path, undisturbed: Path) -> None:
    """Compare the metrics of every step and the files of the last checkpoint."""
    try:
        assert_same_run(run, undisturbed)
    except (AssertionError, ValueError) as error:  # other bytes, other files
        raise UnexpectedError(f"{run} differs from {undisturbed}") from error


def print_rows(trials: Iterable[tuple[str, Callable[[], str]]]) -> bool:
    """Print a row of Markdown for each (name, function that says what was seen).

    Returns whether all went well.
    """
    is_good = True
    for name, run in trials:
        try:
            seen, same = run(), "the same"
        except (UnexpectedError, TimeoutError) as error:
            seen, same, is_good = str(error), "FAILED", False
        print(f"| {name} | {seen} | {same} |", flush=True)
    return is_good


def table(folder: Path, wanted: str) -> bool:
    """Print a row for each fault, the undisturbed hosts first."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "shards").exists():
        write_data_set(folder / "shards", train=(40,) * 8)
    print("| What happens | What is seen | Metrics, checkpoint |\n|---|---|---|", flush=True)
    faults = (f for f in FAULTS if f.happen is nothing or re.search(wanted, f.name))
    return print_rows((fault.name, partial(trial, fault, folder)) for fault in faults)


def options_of(description: str, *, out: str) -> argparse.Namespace:
    """Those of the command line: `out`, a folder, and `only`."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--only", default="", help="pattern of the rows' names")
    return parser.parse_args()


def main() -> None:
    """Make the namespaces, and run the faults in them; exit code 2 where that is not possible."""
    options = options_of(__doc__, out="work/hosts")
    enter_namespaces("tests.faults.hosts")
    sys.exit(not table(options.out.absolute(), options.only))


if __name__ == "__main__":
    main()
