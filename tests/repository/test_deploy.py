"""The recipes in deploy/: their command lines are taken, exit codes mean the same everywhere."""

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest
import yaml
from torch.distributed.run import parse_args

from clozeline.pipeline.common.errors import STOPPED, InputError
from tests.support.printed_commands import parse as parse_line
from tests.support.waiting import free_port

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
LAUNCH, PRETRAIN, SLURM = (DEPLOY / name for name in ("launch.py", "pretrain.sh", "slurm.sh"))
SLURM_SHARDS = DEPLOY / "slurm-shards.sh"
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))
SERVICE, TRAINING = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
(SHARDS,) = yaml.safe_load_all((DEPLOY / "kubernetes-shards.yaml").read_text())
JOBS = [TRAINING, SHARDS]
NAME = attrgetter("name")
TAGS = re.compile(r"registry/clozeline-(\w+):([\d.]+)")


def parse(*words):
    """The context of a command line; URLs become paths, since the store is not there."""
    return parse_line(shlex.join(words).replace("s3://", ""))


def pod(job):
    """The pod of a Job, and its only container."""
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    return spec, container


@pytest.fixture
def programs(tmp_path):
    """A folder for PATH, whose `python` writes down its arguments and exits with $CODE.

    Its `hostname` is that of a machine with a bridge of its own before its network.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    add(folder, "python", f"printf '%s\\0' \"$@\" > {folder}/arguments; exit ${{CODE:-0}}")
    names = "-I) echo 172.17.0.1 10.0.0.7 fd00::7 ;; -f) echo node7.cluster ;; *) echo node7 ;;"
    add(folder, "hostname", f'case "${{1:-}}" in {names} esac')
    return folder


def add(folder, name, code):
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{code}\n")
    path.chmod(0o755)


def run(programs, *words, **variables):
    """Run a script with these programs and variables alone."""
    environment = {"PATH": f"{programs}:/usr/bin:/bin", **variables}
    line = [*map(str, words)]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True)


def launched(programs):
    """What launch.py was called with, as torchrun reads it; clozeline takes its part."""
    launch, *words = (programs / "arguments").read_text().split("\0")[:-1]
    assert Path(ROOT, launch) == LAUNCH
    arguments = parse_args(words)
    assert arguments.no_python
    context = parse(arguments.training_script, *arguments.training_script_args)
    assert context.params["resume"]
    return arguments, context.params


# --- launch.py ------------------------------------------------------------------------------------


@pytest.fixture
def launch():
    """Its main; handlers of signals are as before after it."""
    kinds = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    yield runpy.run_path(str(LAUNCH))["main"]
    for kind, handler in before.items():
        signal.signal(kind, handler)


#: Until torchrun waits for its process: a signal while it starts one loses that process.
WAIT = "while grep -q State:.R /proc/$PPID/status; do :; done"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("exit 0", 0),
        (f"exit {STOPPED}", STOPPED),
        ("kill -9 $$$$", 137),  # torchrun makes one $ of two
        (f"{WAIT}; kill -TERM $PPID; exec sleep 60", STOPPED),  # it stops the process
        ("trap 'exit 3' USR1; kill -USR1 $PPID; while true; do read -t 0.1 x; done", 3),
        ("kill -USR1 $PPID; exit 4", 4),  # it would have ended without a handler
    ],
)
def test_the_launcher_has_the_exit_code_of_its_processes(launch, command, code, capfd):
    line = ["--standalone", "--nproc-per-node=1", "--no-python", "sh", "-c", command]
    assert launch(line) == code


@pytest.mark.parametrize(
    ("conf", "reason"),
    [
        ("is_host=0,read_timeout=1", "timed out after 1000ms while trying to connect to"),
        ("is_host=1,join_timeout=1", "(RendezvousTimeoutError)"),  # nobody else comes
    ],
)
def test_machines_that_do_not_meet_are_one_line(launch, conf, reason, capfd):
    endpoint = f"127.0.0.1:{free_port()}"
    line = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=a"]
    assert launch([*line, f"--rdzv-conf={conf}", "--no-python", "true"]) == 1
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert f"Error: the rendezvous at {endpoint} failed (" in said.splitlines()[-1]
    assert reason in said.splitlines()[-1]


def test_one_code_for_several_processes():
    script = runpy.run_path(str(LAUNCH))
    assert (script["STOPPED"], script["USAGE"]) == (STOPPED, InputError.exit_code)
    codes = {(1,): 1, (-9, 1): 137, (1, 2): 2, (-15, 75): 75, (75, 75): 75, (75, 2): 2}
    assert {found: script["exit_code"](found) for found in codes} == codes


@pytest.mark.slow
def test_the_launcher_stops_while_it_waits_for_other_machines(tmp_path):
    line = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=a"]
    waiting = subprocess.Popen(
        [sys.executable, LAUNCH, *line, "--rdzv-conf=is_host=1", "--no-python", "true"],
        env={**os.environ, "LOGLEVEL": "INFO"},
        stderr=subprocess.PIPE,
        text=True,
    )
    with waiting:
        assert waiting.stderr
        for said in waiting.stderr:
            if "Rendezvous'ing worker group" in said:
                break
        waiting.terminate()
        assert waiting.wait(60) == STOPPED


# --- scripts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "address", "is_host", "own"),
    [
        ("10.0.0.1", "10.0.0.1", True, "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2", False, "10.0.0.2"),
        ("", "", True, "172.17.0.1"),  # a single machine
        ("10.0.0.70", "", False, "172.17.0.1"),
        *((name, "", True, name) for name in ("10.0.0.7", "172.17.0.1", "node7", "node7.cluster")),
    ],
)
def test_machines_meet_at_one_of_them_which_knows_each_of_its_names(
    programs, host, address, is_host, own
):
    line = (PRETRAIN, "work/shards", "--out", "work/a run")
    done = run(programs, *line, HOST=host, ADDRESS=address)
    arguments, given = launched(programs)
    place = f"{host or own}:29500"
    assert (arguments.rdzv_endpoint, arguments.local_addr) == (place, own)
    assert f"is_host={is_host:d}," in arguments.rdzv_conf
    where = "this machine" if is_host else "another machine than this one"
    assert done.stderr == f"rendezvous at {place}, on {where} ({own})\n"
    assert (arguments.nnodes, str(given["out"])) == ("1", "work/a run")


def test_a_script_passes_on_its_arguments_and_the_exit_code(programs):
    words = ("s3://bucket/shards", "--out", "s3://bucket/run", "--preset", "bert-large")
    assert run(programs, PRETRAIN, *words, NODES="2", CODE="75").returncode == 75
    arguments, given = launched(programs)
    assert (arguments.nnodes, arguments.nproc_per_node, arguments.max_restarts) == ("2", "gpu", 3)
    assert (str(given["out"]), given["preset"]) == ("bucket/run", "bert-large")


def test_only_machines_with_the_same_arguments_meet(programs):
    ids = set()
    for out in ("work/a", "work/b", "work/a"):
        run(programs, PRETRAIN, "work/shards", "--out", out, ADDRESS="10.0.0.1")
        ids.add(launched(programs)[0].rdzv_id)
    assert len(ids) == 2


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (1, False), (2, False), (75, True)])
def test_slurm_requeues_a_job_that_was_stopped_and_an_element_that_waited_in_vain(
    programs, code, requeued
):
    scontrol, given = programs / "scontrol.log", programs / "given"
    add(programs, "scontrol", f'echo "$@" >> {scontrol}; echo node3; echo node4')
    add(programs, "srun", 'shift; SLURMD_NODENAME=node4 "$@"')
    add(programs, "clozeline", f"printf '%s\\0' clozeline \"$@\" > {given}; exit $CODE")
    job = {"SLURM_NNODES": "2", "SLURM_JOB_ID": "70123", "SLURM_JOB_NODELIST": "node[3-4]"}
    words = ("work/shards", "--out", "work/run", "--preset", "bert-large")
    assert run(programs, SLURM, *words, **job, CODE=str(code)).returncode == code
    arguments, params = launched(programs)
    assert (arguments.rdzv_endpoint, arguments.local_addr) == ("node3:29623", "node4")
    assert (arguments.nnodes, params["preset"]) == ("2", "bert-large")
    element = {"SLURM_ARRAY_JOB_ID": "70123", "SLURM_ARRAY_TASK_ID": "7"}
    words = ("a b.jsonl", "--tokenizer", "work/tokenizer", "--out", "work/shards")
    assert run(programs, SLURM_SHARDS, *words, **element, CODE=str(code)).returncode == code
    params = parse(*given.read_text().split("\0")[:-1]).params
    assert (params["sources"], params["task"]) == (("a b.jsonl",), "slurm")
    requeues = re.findall("^requeue .*$", scontrol.read_text(), re.M)
    assert requeues == (["requeue 70123", "requeue 70123_7"] if requeued else [])


@pytest.mark.parametrize("path", [PRETRAIN, SLURM, SLURM_SHARDS, LAUNCH], ids=NAME)
def test_a_script_is_executable_and_its_example_is_one_that_is_taken(path):
    assert os.access(path, os.X_OK)
    (example,) = re.findall(rf"^[# ]+.*deploy/{path.name} (.+)$", path.read_text(), re.M)
    _, _, words = example.rpartition("clozeline pretrain ")
    parse("clozeline", "shards" if path is SLURM_SHARDS else "pretrain", *shlex.split(words))


# --- Kubernetes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1])
def test_each_pod_joins_the_others(programs, index):
    spec, container = pod(TRAINING)
    job = TRAINING["spec"]
    variables = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    # What Kubernetes puts for $(INDEX).
    variables = {name: value.replace("$(INDEX)", str(index)) for name, value in variables.items()}
    tini, separator, script = container["command"]
    assert (tini, separator, script) == ("tini", "--", "/opt/clozeline/deploy/pretrain.sh")
    assert run(programs, PRETRAIN, *container["args"], **variables).returncode == 0
    arguments, given = launched(programs)
    assert int(arguments.nnodes) == job["completions"] == job["parallelism"] > index
    assert f"is_host={int(index == 0)}," in arguments.rdzv_conf
    name, service = TRAINING["metadata"]["name"], SERVICE["metadata"]["name"]
    assert spec["subdomain"] == service
    assert arguments.local_addr == f"{name}-{index}.{service}"
    assert arguments.rdzv_endpoint == f"{name}-0.{service}:29500"
    assert SERVICE["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert SERVICE["spec"]["clusterIP"] == "None"
    written = (variables["CLOZELINE_CACHE"], str(given["shard_cache"]), "/tmp")
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert all(any(path.startswith(mount) for mount in mounts) for path in written)


def test_the_grace_period_is_enough_for_a_checkpoint():
    spec, container = pod(TRAINING)
    variables = {each["name"]: each.get("value") for each in container["env"]}
    seconds = int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])
    assert 120 <= seconds <= spec["terminationGracePeriodSeconds"] - 30


def test_the_shards_job_is_a_command_that_is_taken():
    _, container = pod(SHARDS)
    assert "command" not in container, "the entry point of the image passes signals on"
    params = parse(*container["args"]).params
    spec = SHARDS["spec"]
    assert params["task"] == f"$(JOB_COMPLETION_INDEX)/{spec['completions']}"
    assert (spec["completionMode"], spec["parallelism"]) == ("Indexed", spec["completions"])


@pytest.mark.parametrize("job", JOBS, ids=["training", "shards"])
def test_exit_codes_mean_to_kubernetes_what_they_mean_here(job):
    spec, container = pod(job)
    assert spec["restartPolicy"] == "Never", "a podFailurePolicy needs it"
    actions = {}
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        if "onExitCodes" in rule:
            codes = rule["onExitCodes"]
            assert (codes["containerName"], codes["operator"]) == (container["name"], "In")
            actions |= dict.fromkeys(codes["values"], rule["action"])
    assert actions == {InputError.exit_code: "FailJob", STOPPED: "Ignore"}


@pytest.mark.parametrize("job", JOBS, ids=["training", "shards"])
def test_a_pod_has_the_least_privileges(job):
    spec, container = pod(job)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}
    assert container["resources"]["limits"]["memory"]


# --- images ---------------------------------------------------------------------------------------


def test_images_have_the_version_of_the_project():
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
    files = [*DEPLOY.glob("*.yaml"), *DOCKERFILES, *(ROOT / "docs/manual").glob("*.md")]
    found = [match for path in files for match in TAGS.findall(path.read_text())]
    assert {name for name, _ in found} == {path.stem for path in DOCKERFILES}
    assert version
    assert {number for _, number in found} == {version[1]}


@pytest.mark.parametrize("path", DOCKERFILES, ids=NAME)
def test_an_image_has_pinned_versions_runs_as_a_user_and_passes_signals_on(path):
    text, is_beam = path.read_text(), path.stem == "beam"
    bases = re.findall(r"^FROM (\S+)", text, re.M)
    assert bases
    assert all(re.fullmatch(r"[\w/.]+:\d+\.\d+\.\d+[\w.-]*", base) for base in bases)
    assert "-c requirements.lock" in text
    lock = (ROOT / "requirements.lock").read_text()
    (fsspec,) = re.findall(r"^fsspec==(.+)$", lock, re.M)
    assert f's3fs=={fsspec}"' in text, "s3fs needs the fsspec of its own version"
    (beam,) = re.findall(r"^apache-beam==(.+)$", lock, re.M)
    assert not is_beam or f"sdk:{beam}\n" in text
    project = (ROOT / "pyproject.toml").read_text()
    extras = set(re.findall(r"\w+", re.search(r'"\.\[(.+)\]"', text)[1]))
    assert all(f"\n{extra} = [" in project for extra in extras)
    if not is_beam:  # Beam's own image has both
        assert re.findall(r"^USER (.+)$", text, re.M) == ["1000:1000"]
        assert re.findall(r"^ENTRYPOINT (.+)$", text, re.M) == ['["tini", "--"]']
        assert re.findall(r"^CMD (.+)$", text, re.M) == ['["clozeline", "--help"]']


def test_an_image_is_built_from_what_the_build_needs():
    """.dockerignore excludes everything and takes back what is copied."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in lines
    taken = {line[1:] for line in lines if line.startswith("!")}
    assert all((ROOT / name).exists() for name in taken)
    links = {path.resolve().name for path in (ROOT / "clozeline").iterdir() if path.is_symlink()}
    packages = links | {"clozeline"}
    read = {"LICENSE", "README.md", "pyproject.toml", "requirements.lock"}
    assert len(packages) == 4
    assert taken == packages | read | {"deploy/launch.py", "deploy/pretrain.sh"}
