"""What is handed out: the wheel, what extras add, the Makefile, and the recipes of deploy/."""

import json
import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tomllib
from operator import attrgetter
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from torch.distributed.run import parse_args

from clozeline.pipeline.common.errors import EXTRAS, STOPPED, InputError
from tests.support.files import times
from tests.support.printed_commands import parse
from tests.support.small_jobs import ROOT, python
from tests.support.waiting import free_port

PACKAGES = ("clozeline", "pipeline", "model", "train")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: No network, and the setuptools that are installed.
OFFLINE = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


def output(*words, python=sys.executable, **options):
    done = subprocess.run([python, *words], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def built(kind, source, out):
    """What setuptools builds: an "sdist" or the wheel of an "editable" install."""
    code = f"from setuptools.build_meta import build_{kind} as b; print(b({str(out)!r}))"
    return out / output("-c", code, cwd=source).splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy, since a build leaves files beside the sources."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored, symlinks=True)
    return source


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    """From the sdist, so what that lacks is missing here, too."""
    out = tmp_path_factory.mktemp("wheel")
    sdist = built("sdist", source, out)
    subprocess.run([*PIP, "wheel", *OFFLINE, "--wheel-dir", out, sdist], check=True)
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_holds_every_file_of_the_packages(wheel):
    packed = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert "clozeline/py.typed" in packed
    assert packed == {
        f"{'' if package == 'clozeline' else 'clozeline/'}{path.relative_to(ROOT).as_posix()}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def install(wheel, folder, *, cwd):
    """A function that runs a program of an environment that has nothing but the wheel."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    subprocess.run([*PIP, "--python", folder, "install", *OFFLINE, wheel], check=True)
    libraries = sysconfig.get_path("purelib")  # the dependencies, which are not installed again
    environment = {**os.environ, "PYTHONPATH": libraries}

    def run(program, *words):
        return output(*words, python=folder / "bin" / program, cwd=cwd, env=environment)

    return run


#: What nearly every project in this field has in its own folder.
STRANGERS = ("train.py", "pipeline.py", "model/__init__.py")
#: Every Python name, the help of every command, and text that is generated from package data.
EVERYTHING = """
import contextlib, io, sys
import clozeline
for name in clozeline.__dir__():
    getattr(clozeline, name)
from clozeline.train.cli import main
learn = ["tokenizer", "sample:articles?size=20KB", "sample:reviews?rows=20", "--out=tokenizer"]
words = ["shards", "sample:articles?size=20KB", "--workers=1"]
with contextlib.redirect_stdout(io.StringIO()):
    for name in main.commands:
        main([name, "--help"], standalone_mode=False)
    main([*learn, "--vocab-size=300"], standalone_mode=False)
    main([*words, "--tokenizer=tokenizer", "--out=shards"], standalone_mode=False)
    main(["report", "shards"], standalone_mode=False)
print(clozeline.__file__.startswith(sys.prefix), {"model", "pipeline", "train"} & {*sys.modules})
"""


def test_the_installed_wheel_needs_no_checkout_and_stands_beside_other_peoples_modules(
    wheel, tmp_path
):
    work = tmp_path / "work"
    for name in STRANGERS:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("raise SystemExit('a stranger')")
    run = install(wheel, tmp_path / "venv", cwd=work)
    assert run("clozeline", "--version") == f"clozeline {PROJECT['version']}\n"
    assert run("python", "-c", EVERYTHING) == "True set()\n"
    assert len((work / "tokenizer" / "vocab.txt").read_text().splitlines()) == 300
    assert (work / "shards" / "report.html").exists()  # from templates and style sheets


def test_an_editable_install_is_a_path_that_editors_and_mypy_follow(source, tmp_path):
    with ZipFile(built("editable", source, tmp_path)) as built_wheel:
        packed = {name for name in built_wheel.namelist() if ".dist-info/" not in name}
        (path,) = packed
        assert path.endswith(".pth")
        assert built_wheel.read(path).decode().strip() == str(source)


def test_what_names_the_project_agrees():
    """Version, licence and address of the repository; CI may only read, and runs every Python."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()
    home = PROJECT["urls"]["Homepage"]
    assert citation["repository-code"] == home
    files = [ROOT / name for name in ("pyproject.toml", "SECURITY.md", "docs/mkdocs.yml")]
    files += [*ROOT.glob(".github/ISSUE_TEMPLATE/*.yml"), *ROOT.glob("deploy/*.Dockerfile")]
    text = "\n".join(path.read_text() for path in files)
    for link in re.findall(r"https://github\.com/[^\s\")]+", text):
        assert link.startswith(home)
        kind, _, path = link.removeprefix(home).strip("/").partition("/")
        assert kind in ("", "issues", "security") or (ROOT / path.removeprefix("main/")).is_file()
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["permissions"] == {"contents": "read"}
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert workflow["jobs"]["check"]["strategy"]["matrix"]["python-version"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", name) for name in used)


def pins(lock):
    """Name to version of a lock file."""
    lines = (ROOT / lock).read_text().splitlines()
    pinned = [Requirement(line) for line in lines if "==" in line]
    return {canonicalize_name(each.name): Version(str(each.specifier)[2:]) for each in pinned}


def test_the_oldest_versions_allowed_are_those_that_are_tested():
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    floors = dict(line.split(">=") for group in groups for line in group if ">=" in line)
    tested, newest = pins("requirements-min.lock"), pins("requirements.lock")
    assert floors.pop("torch") == "2.11"  # tested elsewhere; the list has the newest
    extra = pins("requirements-extra.lock")
    assert not extra.keys() & newest.keys()
    assert "lightning" in extra
    floors.pop("setuptools")  # builds the wheel; no part of what is installed
    assert len(floors) >= 25
    for name, floor in floors.items():
        assert tested[canonicalize_name(name)] == Version(floor), name
        assert newest[canonicalize_name(name)] >= Version(floor), name


# --- Without the packages of the extras, every command works or names its extra in one line -------

#: Prints exit code and messages of each command line.
BLOCKED = f"""
import json, sys
sys.modules.update(dict.fromkeys({list(EXTRAS)}))
from click.testing import CliRunner
from clozeline.train.cli import main
done = [CliRunner().invoke(main, line.split()) for line in sys.argv[1:]]
print(json.dumps([(each.exit_code, each.stderr) for each in done]))
"""

#: Command lines, and the extra that each needs; {} is the folder `whole`.
LINES = {
    "tokenizer {}/text.txt --vocab-size 500 --out {}/more": "pipeline",
    "shards {}/text.txt --tokenizer {}/tokenizer --out {}/more": "pipeline",
    "shards hf://imdb --tokenizer {}/tokenizer --out {}/more": "pipeline",
    "verify {}/data --source {}/text.txt": "pipeline",
    "inspect {}/data": None,
    "report {}/data": "pipeline",
    "view {}/data": "pipeline",
    "baseline {}/rows.csv --test {}/rows.csv": "baseline",
    "predict {}/classifier cat": None,
    "export {}/run --format onnx --out {}/onnx": "onnx",
}


def test_a_missing_package_is_one_line_with_its_extra(whole):
    lines = [line.replace("{}", str(whole)) for line in LINES]
    printed = json.loads(python("-c", BLOCKED, *lines))
    ending = "which is not installed; run `pip install 'clozeline[{}]'`."
    for (code, said), (line, extra) in zip(printed, LINES.items(), strict=True):
        assert code == (2 if extra else 0), (line, said)
        if extra:
            last = said.splitlines()[-1]
            assert last.startswith("Error: "), line
            assert last.endswith(ending.format(extra))


def test_the_extras_are_those_of_the_project():
    extras = PROJECT["optional-dependencies"]
    named = {"sklearn": "scikit-learn"}
    for package, extra in EXTRAS.items():
        names = [entry.partition(">")[0] for entry in extras[extra]]
        assert named.get(package, package.replace("_", "-")) in names, package


# --- the Makefile: stale stages run again, differing values are reported, nothing deletes data ----

STAGES = ["tokenizer", "shards", "pretrain", "finetune", "export"]
#: In the place of `clozeline`: all that a stage may leave, or an exit code.
STAGE = """
test "$CODE" = 0 || exit $CODE
while [ "$1" != --out ]; do shift; done
mkdir -p $2
touch $2/tokenizer.json $2/manifest.json $2/summary.json $2/report.json $2/config.json
"""
#: A value that this test's own `make` was given would be another project's: `VENV`, to be removed.
OUR_VARIABLES = re.findall(r"^(\w+) *\?=", (ROOT / "Makefile").read_text(), re.MULTILINE)
ENVIRONMENT = {name: x for name, x in os.environ.items() if name not in OUR_VARIABLES}


def add(folder, name, code):
    """A program of this name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{code}\n")
    path.chmod(0o755)


def make(project, *words, code=0):
    """What make prints; each stage ends with the code."""
    done = subprocess.run(
        ["make", "--no-print-directory", *words],
        cwd=project,
        env={**ENVIRONMENT, "MAKEFLAGS": "", "CODE": str(code)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == code, done.stdout
    return done.stdout


def clozeline_lines(project, *words):
    """The words of each command of clozeline that make would run."""
    plan = make(project, "-n", *words).replace("\\\n", " ")
    lines = re.findall(r"^\.venv/bin/clozeline (.*)$", plan, re.MULTILINE)
    return [shlex.split(line) for line in lines]


def planned(project, *words):
    return [line[0] for line in clozeline_lines(project, *words)]


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A copy of the Makefile, and every stage done, with values in the file for a user's own."""
    folder = tmp_path_factory.mktemp("make")
    shutil.copy(ROOT / "Makefile", folder)
    for name in ("requirements.lock", "pyproject.toml"):
        (folder / name).touch()
    (folder / "clozeline.mk").write_text("PRESET := bert-tiny\nSTEPS := 2\n")
    add(folder / ".venv" / "bin", "clozeline", STAGE)
    (folder / ".venv" / "ready").touch()
    lines = clozeline_lines(folder, "finetune", "export")
    assert [name for name, *_ in lines] == STAGES
    for line in lines:
        parse(shlex.join(["clozeline", *line]))
    make(folder, "finetune", "export")
    return folder


@pytest.fixture
def project(original, tmp_path):
    return shutil.copytree(original, tmp_path / "project", symlinks=True)


@pytest.mark.parametrize(
    ("change", "stages"),
    [
        ("WORKERS=1", []),  # the same bytes
        ("SOURCE=sample:articles?size=70KB", STAGES),
        ("VOCAB=500", STAGES),
        ("LENGTH=32", STAGES[1:]),
        ("STEPS=3", STAGES[2:]),
        ("SHARDS_OPTIONS=--pairs none", STAGES[1:]),
        ("FINETUNE_OPTIONS=--seeds 2", ["finetune"]),
        ("RUN=work/other", STAGES[2:]),
        ("TRAIN=sample:reviews?rows=50", ["finetune"]),
    ],
)
def test_a_changed_value_reaches_the_stages_that_depend_on_it(original, change, stages):
    assert planned(original, "finetune", "export", change) == stages


def test_make_says_what_differs_and_leaves_the_folder(project):
    before, words = times(project / "work"), ("pretrain", "PRESET=bert-mini")
    said = make(project, *words, code=2)
    assert "the values of work/run were PRESET=bert-tiny STEPS=2" in said
    assert re.search(
        r"now they are PRESET=bert-mini STEPS=2.*\(OVERWRITE=1 replaces work/run\)", said
    )
    assert times(project / "work") == before
    assert planned(project, "finetune", "export") == [], "the old values are still those of the run"


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (("shards", "VOCAB=500", "OVERWRITE=1"), dict.fromkeys(STAGES[:2], "--overwrite")),
        (("pretrain", "STEPS=3"), {"pretrain": "--resume --preset bert-tiny --max-steps 3"}),
        (("pretrain", "HOURS=2"), {"pretrain": "--resume --preset bert-tiny --for 2h"}),
    ],
)  # fmt: skip
def test_overwrite_replaces_a_folder_and_more_steps_continue_a_run(original, words, taken):
    """Each option reaches the commands that it is for; they are tested elsewhere."""
    lines = {line[0]: " ".join(line) for line in clozeline_lines(original, *words)}
    assert list(lines) == list(taken)
    for name, options in taken.items():
        assert options in lines[name]
        assert ("--overwrite" in lines[name]) == ("OVERWRITE=1" in words)


def test_help_lists_every_target(original):
    targets = [line.split()[0] for line in make(original, "help").splitlines()]
    phony = re.findall(r"^\.PHONY: (.*)$", (original / "Makefile").read_text(), re.MULTILINE)
    assert targets[0] == "help"
    assert {*STAGES} < {*targets} == {name for line in phony for name in line.split()}


# --- deploy/: command lines are taken, exit codes mean the same everywhere ------------------------

DEPLOY = ROOT / "deploy"
LAUNCH, PRETRAIN, SLURM = (DEPLOY / name for name in ("launch.py", "pretrain.sh", "slurm.sh"))
SLURM_SHARDS = DEPLOY / "slurm-shards.sh"
DOCKERFILES = sorted(DEPLOY.glob("*.Dockerfile"))
SERVICE, TRAINING = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
(SHARDS,) = yaml.safe_load_all((DEPLOY / "kubernetes-shards.yaml").read_text())
JOBS = [TRAINING, SHARDS]
NAME = attrgetter("name")
TAGS = re.compile(r"registry/clozeline-(\w+):([\d.]+)")


def parse_words(*words):
    """The context of a command line; URLs become paths, since the store is not there."""
    return parse(shlex.join(words).replace("s3://", ""))


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
    add(folder, "python", f"printf '%s\\0' \"$@\" > {folder}/arguments; exit ${{CODE:-0}}")
    names = "-I) echo 172.17.0.1 10.0.0.7 fd00::7 ;; -f) echo node7.cluster ;; *) echo node7 ;;"
    add(folder, "hostname", f'case "${{1:-}}" in {names} esac')
    return folder


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
    context = parse_words(arguments.training_script, *arguments.training_script_args)
    assert context.params["resume"]
    return arguments, context.params


@pytest.fixture
def launch():
    """Its main; handlers of signals are as before after it."""
    kinds = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
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


@pytest.mark.parametrize(
    ("host", "address", "is_host", "own"),
    [
        ("10.0.0.1", "10.0.0.1", True, "10.0.0.1"),
        ("10.0.0.1", "10.0.0.2", False, "10.0.0.2"),
        ("", "", True, "172.17.0.1"),  # a single machine
        ("10.0.0.70", "", False, "172.17.0.1"),
        *((name, "", True, name) for name in ("10.0.0.7", "node7.cluster")),
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
    run(programs, PRETRAIN, *words, NODES="2")
    assert launched(programs)[0].rdzv_id == arguments.rdzv_id
    run(programs, PRETRAIN, *words, "--seed=1", NODES="2")
    assert launched(programs)[0].rdzv_id != arguments.rdzv_id


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
    element["SLURM_ARRAY_TASK_COUNT"] = "8"
    words = ("a b.jsonl", "--tokenizer", "work/tokenizer", "--out", "work/shards")
    assert run(programs, SLURM_SHARDS, *words, **element, CODE=str(code)).returncode == code
    params = parse_words(*given.read_text().split("\0")[:-1]).params
    assert (params["sources"], params["task"]) == (("a b.jsonl",), "7/8")
    requeues = re.findall("^requeue .*$", scontrol.read_text(), re.M)
    assert requeues == (["requeue 70123", "requeue 70123_7"] if requeued else [])


@pytest.mark.parametrize("path", [PRETRAIN, SLURM, SLURM_SHARDS, LAUNCH], ids=NAME)
def test_a_script_is_executable_and_its_example_is_one_that_is_taken(path):
    assert os.access(path, os.X_OK)
    (example,) = re.findall(rf"^[# ]+.*deploy/{path.name} (.+)$", path.read_text(), re.M)
    _, _, words = example.rpartition("clozeline pretrain ")
    parse_words("clozeline", "shards" if path is SLURM_SHARDS else "pretrain", *shlex.split(words))


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
    arguments, _ = launched(programs)
    assert int(arguments.nnodes) == job["completions"] == job["parallelism"] > index
    assert f"is_host={int(index == 0)}," in arguments.rdzv_conf
    name, service = TRAINING["metadata"]["name"], SERVICE["metadata"]["name"]
    assert spec["subdomain"] == service
    assert arguments.local_addr == f"{name}-{index}.{service}"
    assert arguments.rdzv_endpoint == f"{name}-0.{service}:29500"
    assert SERVICE["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}
    assert SERVICE["spec"]["clusterIP"] == "None"
    seconds = int(variables["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])  # for a checkpoint
    assert 120 <= seconds <= spec["terminationGracePeriodSeconds"] - 30
    written = (variables["CLOZELINE_CACHE"], "/tmp")
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert all(any(path.startswith(mount) for mount in mounts) for path in written)


def test_the_shards_job_is_a_command_that_is_taken():
    _, container = pod(SHARDS)
    assert "command" not in container, "the entry point of the image passes signals on"
    params = parse_words(*container["args"]).params
    spec = SHARDS["spec"]
    assert params["task"] == f"$(JOB_COMPLETION_INDEX)/{spec['completions']}"
    assert (spec["completionMode"], spec["parallelism"]) == ("Indexed", spec["completions"])


@pytest.mark.parametrize("job", JOBS, ids=["training", "shards"])
def test_exit_codes_mean_to_kubernetes_what_they_mean_here(job):
    spec, container = pod(job)
    assert spec["restartPolicy"] == "Never", "a podFailurePolicy needs it"
    rules = [rule for rule in job["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    actions = {code: rule["action"] for rule in rules for code in rule["onExitCodes"]["values"]}
    assert {rule["onExitCodes"]["containerName"] for rule in rules} == {container["name"]}
    assert actions == {InputError.exit_code: "FailJob", STOPPED: "Ignore"}


def test_images_have_the_version_of_the_project():
    files = [*DEPLOY.glob("*.yaml"), *DOCKERFILES, *(ROOT / "docs/manual").glob("*.md")]
    found = {match for path in files for match in TAGS.findall(path.read_text())}
    assert found == {(path.stem, PROJECT["version"]) for path in DOCKERFILES}
