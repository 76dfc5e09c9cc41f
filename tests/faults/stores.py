"""`make stores`: a job from and to an S3 server that fails, and what it fetched.

    python -m tests.faults.stores                                  moto's server, in memory
    python -m tests.faults.stores --server "COMMAND" --port 8000   another one, which keeps its data

Sources, token cache and data set are `s3://` URLs. A proxy between the job and the server counts
requests and injects faults. Every job must give the shards of a local one, at once or when the
command is run again. `s3fs` is needed, and `moto[server]` where no other server is named; keys are
in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq

from tests.faults.store_proxy import Fault, Proxy, running_proxy
from tests.support.small_jobs import (
    COMMAND,
    ROOT,
    articles,
    clozeline_ok,
    no_survivors,
    shard_digests,
    write_parquet,
    write_tokenizer,
)
from tests.support.waiting import free_port, is_listening, wait_until

DOCUMENTS = 3_200
BUCKET = "clozeline-trials"
SIZES = ("--num-shards=6", "--validation=0.1", "--block-bytes=300000", "--workers=2")
SECONDS = 300.0  #: until a command must have ended
AT_MOST = 1.2  #: bytes fetched for each byte needed


NOTHING = Fault()


@dataclass
class Trial:
    """A job that is disturbed, and what must become of it."""

    name: str
    disturb: Callable[["Trials", subprocess.Popen[str]], None]
    fault: Fault = NOTHING
    goes_on: bool = True  #: the first command succeeds; else the second one, without a fault


class Trials:
    """The server, the proxy and the right bytes."""

    def __init__(self, folder: Path, server: "Server", proxy: Proxy) -> None:
        self.folder, self.server, self.proxy = folder, server, proxy
        self.store = fsspec.filesystem("s3", endpoint_url=server.url, skip_instance_cache=True)
        texts = articles(DOCUMENTS)
        self.source = write_parquet(folder / "text.parquet", texts, row_group_size=400)
        self.tokenizer = write_tokenizer(folder / "tokenizer", texts)
        clozeline_ok(*self.line(self.source, folder / "local"))
        self.right = shard_digests(folder / "local")
        if not self.store.exists(BUCKET):
            self.store.mkdir(BUCKET)
        self.store.put_file(str(self.source), f"{BUCKET}/text.parquet")

    def line(self, source: object, out: object, *options: object) -> list[str]:
        line = ("shards", source, "--tokenizer", self.tokenizer, "--out", out, *SIZES, *options)
        return [str(part) for part in line]

    def start(self, name: str) -> subprocess.Popen[str]:
        url = f"s3://{BUCKET}/{name}"
        line = self.line(
            f"s3://{BUCKET}/text.parquet", f"{url}/out", "--token-cache", f"{url}/cache"
        )
        here = f"http://127.0.0.1:{self.proxy.port}"
        return subprocess.Popen(
            [*COMMAND, *line],
            cwd=ROOT,
            env={**os.environ, "AWS_ENDPOINT_URL": here, "AWS_EC2_METADATA_DISABLED": "true"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, trial: Trial) -> bool:
        """Print a row; return whether everything that must hold does."""
        name = trial.name.replace(" ", "-").replace("%", "").replace(",", "").replace("/", "-")
        if self.store.exists(f"{BUCKET}/{name}"):
            self.store.rm(f"{BUCKET}/{name}", recursive=True)
        self.proxy.clear()
        self.proxy.fault = trial.fault
        started = time.monotonic()
        codes, said = [], ""
        for disturb in (trial.disturb, undisturbed):
            with self.start(name) as job, no_survivors(job.pid):
                disturb(self, job)
                _, text = job.communicate(timeout=SECONDS)
            said = said or last_line(text)
            codes.append(job.returncode)
            if codes[-1] == 0:
                break
            self.proxy.fault = NOTHING
        seconds = time.monotonic() - started
        same = self.digests(name) == self.right
        ratio = self.fetched(name)
        requests = self.proxy.requests
        faults = sum(requests.values()) - requests["all"]
        print(
            f"{trial.name:34}{'/'.join(map(str, codes)):>8}{'same' if same else 'OTHER':>7}"
            f"{requests['all']:>10}{faults:>8}{ratio:>9.2f}{seconds:>9.1f}",
            flush=True,
        )
        if codes[0]:
            print(f"    {said}", flush=True)
        is_one_line = codes[0] in (0, -signal.SIGKILL) or said.startswith("Error: ")
        is_first = (codes[0] == 0) == trial.goes_on
        few = ratio <= AT_MOST or len(codes) > 1 or bool(faults)
        return same and codes[-1] == 0 and is_one_line and is_first and few

    def digests(self, name: str) -> dict[str, str]:
        """Digests of the shards in the store, read without the proxy."""
        self.store.invalidate_cache()
        names = self.store.glob(f"{BUCKET}/{name}/out/*-of-*.arrow")
        return {
            path.rpartition("/")[2]: sha256(self.store.cat_file(path)).hexdigest() for path in names
        }

    def fetched(self, name: str) -> float:
        """Bytes fetched per byte of the source's text and of the token cache."""
        metadata = pq.read_metadata(self.source)
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        files = self.store.find(f"{BUCKET}/{name}/cache", detail=True)
        cached = {path: info["size"] for path, info in files.items() if path.endswith(".tokens")}
        needed = sum(group.column(0).total_compressed_size for group in groups)
        paths = [f"{BUCKET}/text.parquet", *cached]
        return sum(self.proxy.fetched[path] for path in paths) / (needed + sum(cached.values()))

    def wait_for_blocks(self, job: subprocess.Popen[str]) -> None:
        """Wait until three blocks are tokenized, or the job is over."""

        def is_done() -> bool:
            blocks = sum(key.endswith(".tokens") for key in self.proxy.written)
            return blocks >= 3 or job.poll() is not None

        with suppress(TimeoutError):  # then the row shows it
            wait_until(is_done, "three blocks", seconds=SECONDS)


class Server:
    def __init__(self, command: str, port: int) -> None:
        self.command, self.port, self.url = shlex.split(command), port, f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        null = subprocess.DEVNULL
        self.process = process = subprocess.Popen(
            self.command, stdout=null, stderr=null, start_new_session=True
        )
        with suppress(TimeoutError):
            wait_until(
                lambda: is_listening(self.port) or process.poll() is not None,
                "answer of the server",
                seconds=SECONDS,
            )
        if not is_listening(self.port):
            sys.exit(f"{shlex.join(self.command)} does not answer at port {self.port}")

    def kill(self) -> None:
        """SIGKILL, to its whole process group."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def running_server(command: str | None, port: int) -> Iterator[Server]:
    """The named server, or moto's."""
    if command is None:
        port = free_port()
        command = f"{sys.executable} -m moto.server -H 127.0.0.1 -p {port}"
    server = Server(command, port)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else ""


def undisturbed(_trials: Trials, _job: subprocess.Popen[str]) -> None:
    """Nothing happens but the trial's fault."""


def failing_after(fault: Fault, trials: Trials, job: subprocess.Popen[str]) -> None:
    """The fault begins after three blocks and stays."""
    trials.wait_for_blocks(job)
    trials.proxy.fault = fault


def down_for(seconds: float, trials: Trials, job: subprocess.Popen[str]) -> None:
    """Nothing is served for a while, after three blocks."""
    failing_after(Fault(down=True), trials, job)
    time.sleep(seconds)
    trials.proxy.fault = NOTHING


def server_killed(trials: Trials, job: subprocess.Popen[str]) -> None:
    trials.wait_for_blocks(job)
    trials.server.kill()
    trials.server.start()


def driver_killed(trials: Trials, job: subprocess.Popen[str]) -> None:
    trials.wait_for_blocks(job)
    os.killpg(job.pid, signal.SIGKILL)


def trials_of(*, keeps_data: bool) -> list[Trial]:
    """All trials; some servers forget what they hold when they are killed."""
    forbidden = Fault(forbidden=True)
    killed = [Trial("server killed and started again", server_killed)] if keeps_data else []
    return [
        Trial("undisturbed", undisturbed),
        Trial("5 % of requests: 503", undisturbed, Fault(unavailable=0.05)),
        Trial("5 % of connections reset", undisturbed, Fault(reset=0.05)),
        Trial("answers 100 ms later", undisturbed, Fault(seconds=0.1)),
        Trial("server down for 3 s", partial(down_for, 3.0)),
        *killed,
        Trial("server down for good", partial(failing_after, Fault(down=True)), goes_on=False),
        Trial("403 from some moment on", partial(failing_after, forbidden), goes_on=False),
        Trial("command killed", driver_killed, goes_on=False),
    ]


def main() -> None:
    """A row for each trial; exit code 1 where something does not hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--server", help="Command of an S3 server that keeps its data when killed.")
    parser.add_argument("--port", type=int, default=0, help="Port of that server.")
    parser.add_argument("--only", default="", help="Trials whose name has this in it.")
    options: Any = parser.parse_args()
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "testing")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "testing")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_server(options.server, options.port) as server,
        running_proxy(server.port) as proxy,
    ):
        trials = Trials(Path(scratch), server, proxy)
        print(f"{'trial':34}{'exit':>8}{'bytes':>7}{'requests':>10}{'failed':>8}", end="")
        print(f"{'fetched':>9}{'seconds':>9}", flush=True)
        chosen = [t for t in trials_of(keeps_data=bool(options.server)) if options.only in t.name]
        failed = [trial.name for trial in chosen if not trials.run(trial)]
    if failed:
        sys.exit(f"does not hold: {', '.join(failed)}")


if __name__ == "__main__":
    main()
