"""README and manual say what is so, in plain words; their commands end well, one after the other.

Only sizes are smaller here: less text, a smaller vocabulary, shorter rows, fewer of them and steps,
and no search for a learning rate.
"""

import ast
import csv
import doctest
import io
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tokenize

import pyarrow.parquet as pq
import pytest
import torch
from pyarrow.csv import read_csv

import clozeline
from clozeline.pipeline.dataset.schema import example_schema
from clozeline.pipeline.sources.sample.reviews import make_reviews
from clozeline.train.cli import main
from clozeline.train.finetuning.classifier import load_classifier
from tests.repository.test_architecture import ROOMS
from tests.support.printed_commands import PAGES, blocks, commands, parse
from tests.support.small_huggingface import quiet_transformers
from tests.support.small_jobs import ROOT, articles, write_parquet

TEXTS = {path.name: path.read_text() for path in PAGES}
README = TEXTS["README.md"]
TEXT = "\n".join(TEXTS.values())
REFERENCE = runpy.run_path(str(ROOT / "docs" / "write_reference.py"))


# --- What is named exists -------------------------------------------------------------------------


def test_the_reference_is_that_of_the_code_and_its_signatures_are_python():
    """If it is stale: python docs/write_reference.py"""
    assert REFERENCE["NAMES"].keys() == clozeline._MODULES.keys()
    for page, text in REFERENCE["pages"]().items():
        assert REFERENCE["written"](page, text) == TEXTS[page], "docs/write_reference.py writes it"
    signatures = [block for language, block in blocks(TEXTS["python.md"]) if language == "text"]
    assert "preset(name: str, **changes: Any) -> BertConfig\n" in signatures
    for signature in signatures:
        ast.parse(f"def {signature.rstrip()}: ...")
        assert not re.search(r"Optional|Union|NoneType|: '|mappingproxy", signature)
    assert not re.search(r"[\x00-\x08]", TEXTS["commands.md"])  # of click


@pytest.mark.parametrize("line", commands(TEXT))
def test_every_command_line_is_one_that_clozeline_takes(line):
    parse(line)


def test_python_in_the_manual_compiles_and_imports_what_there_is():
    for name, text in TEXTS.items():
        for language, block in blocks(text):
            if language == "python":
                compile(block, name, "exec")
                ours = re.findall(r"^ *((?:from|import) clozeline.*)", block, re.M)
                exec("\n".join(ours), {})


#: Of Beam, torchrun, TensorBoard, sbatch, scripts and the trial of engines.
OTHERS = {"--runner", "--local-addr", "--no-python", "--device", "--help", "--logdir"}
OTHERS |= {"--nodes", "--signal", "--time", "--only", "--other", "--size", "--to"}
OPTIONS = {
    name
    for command in main.commands.values()
    for option in command.params
    for name in (*option.opts, *option.secondary_opts)
}
FOLDERS, ENDINGS = "tests|pipeline|model|train|deploy|examples", "py|sh|yaml|Dockerfile|ipynb"
FILES = rf"\b((?:{FOLDERS})/[\w/.-]+\.(?:{ENDINGS}))\b"
INLINE = "\n".join(re.findall(r"`([^`\n]+)`", TEXT))  # a command is not followed by the next
TESTS = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
MAKEFILE = (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("named", "exists"),
    [
        (re.findall(r"clozeline ([a-z]+)\b", INLINE), main.commands.__contains__),
        (re.findall(r"--[a-z][a-z-]+(?![\w-])", INLINE), (OPTIONS | OTHERS).__contains__),
        (
            re.findall(r"(?:`|^)make ([a-z-]+)", TEXT, re.M),
            {*re.findall(r"^([a-z-]+):", MAKEFILE, re.M)}.__contains__,
        ),
        (re.findall(FILES, TEXT), lambda name: (ROOT / name).exists()),
        (re.findall(r"\]\((?!https?:)([^)#]+)", README), lambda name: (ROOT / name).exists()),
        (
            re.findall(r"`(test_\w+)`", TEXT),
            {*re.findall(r"^def (test_\w+)", TESTS, re.M)}.__contains__,
        ),
    ],
    ids=["commands", "options", "targets", "files", "links", "tests"],
)
def test_what_running_text_names_exists(named, exists):
    assert len({*named}) >= 6
    assert [name for name in {*named} if not exists(name)] == []


def folders_of(tree: str) -> list[str]:
    """An indented list of names to paths: a line below another, two spaces deeper, is inside it."""
    above: list[str] = []
    paths = []
    for indent, name in re.findall(r"^( *)(\w+)/", tree, re.M):
        above = [*above[: len(indent) // 2], name]
        paths.append("/".join(above))
    return paths


def test_the_tree_of_files_has_a_line_for_each_room_in_the_order_in_which_they_may_import():
    tree = folders_of(README[README.index("## Files") : README.index("## Development")])
    on_disk = {
        path.parent.relative_to(ROOT).as_posix()
        for package in ("pipeline", "model", "train", "tests")
        for path in (ROOT / package).rglob("*.py")
    }
    assert sorted(tree) == sorted(on_disk | {"deploy", "examples"})
    for package, rooms in ROOMS.items():
        named = [path.partition("/")[2] for path in tree if path.startswith(f"{package}/")]
        in_order = [room for room in rooms if room in named]
        assert [room for room in named if "/" not in room] == in_order


def test_the_columns_are_those_of_the_schema():
    table = TEXTS["shards.md"].partition("`clozeline inspect` prints")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", table, re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert named == example_schema(100, "", packed=True).names


# --- Plain words: comments, docstrings, messages and the manual use the field's terms -------------


#: What not to write: what to write instead.
PLAIN = {
    r"(?:#: |^\"+)(?:Of|Instead of|How often|So many) ": "a phrase that stands alone",
    r"\bnot given:": "Default: ...",
    r"(?<!here )\b(?:is|are) no (?!longer|more|less|stale)[a-z]+": "is not a ...",
    r"\bnobody\b": "cannot connect to; unknown",
    r"\bmend(?:s|ed|able|ing)?\b": "fix",
    r"\b(?:lives|life)\b": "process, restart; is in",
    r"\bthe clock\b": "elapsed time",
    r"(?<!page )(?<!page then )(?<!tests\.)\bfaults\b(?! again|/)": "findings",
    r"\bstretch(?:es)?\b": "span",
    r"\brivals?\b": "compared models",
    r"\bfacts\b": "summary, metadata",
    r"\b(?:tell|tells|told)\b": "print, report, return",
    r"\bmade of\b": "built from",
    r"\bsaid so\b|\bis said\b": "is reported",
    r"\bgo(?:es)? on\b|\bwent on\b": "continue, resume",
    # "Look at the pairs." is plain advice: lower case only.
    r"(?:\blook(?:s|ed|ing)?\b)(?! at the pairs| ?-?(?:up|ahead|behind)| (?:it|them) up| like)":
        "poll, check",
}  # fmt: skip
WRITTEN = [
    path
    for pattern in ("pipeline/**/*.py", "model/**/*.py", "train/**/*.py", "**/*.jinja")
    for path in sorted(ROOT.glob(pattern))
    if "pipeline/sources/sample/" not in path.as_posix()  # generated text
] + [*PAGES, *sorted(ROOT.glob("deploy/*")), ROOT / "Makefile", ROOT / "pyproject.toml"]


def prose_of(path):
    """A text, or the comments and strings of a module."""
    text = path.read_text()
    if path.suffix != ".py":
        return text
    f_string = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)  # from Python 3.12
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    kinds = (tokenize.COMMENT, tokenize.STRING, f_string)
    return "\n".join(token.string for token in tokens if token.type in kinds)


def test_plain_words():
    for path in WRITTEN:
        text = prose_of(path)
        for pattern, instead in PLAIN.items():
            flags = re.M | re.IGNORECASE if pattern[0] == "\\" else re.M
            found = re.search(pattern, text, flags)
            assert not found, f"{path}: {found[0]} (say it as: {instead})"


# --- The Python interface: its names are those of the reference, whose examples run ---------------


def test_type_checkers_and_python_read_the_same_names():
    body = ast.parse((ROOT / "clozeline/__init__.py").read_text()).body
    (block,) = (node for node in body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    typed = {alias.name: node.module for node in imports for alias in node.names}
    assert typed == {name: f"clozeline.{m}" for name, m in clozeline._MODULES.items()}
    with pytest.raises(AttributeError, match="'clozeline' has no attribute 'Loder'"):
        clozeline.Loder  # noqa: B018


def test_the_examples_of_the_reference_run_one_after_the_other(tmp_path, monkeypatch, capfd):
    """From generated text to answers, with str and without any Path; and without a word."""
    monkeypatch.chdir(tmp_path)
    names = {name: getattr(clozeline, name) for name in REFERENCE["NAMES"]}
    runner = doctest.DocTestRunner(verbose=False)
    for name, found in names.items():
        [test] = doctest.DocTestFinder(recurse=False).find(found, name, module=False, globs=names)
        assert test.examples, f"{name} has no example"
        runner.run(test)
    printed = capfd.readouterr()
    assert runner.failures == 0, printed.out
    assert printed.err == ""


# --- The printed commands run ---------------------------------------------------------------------

#: Checkpoints are named by their steps, so those shrink alike: 20000 -> 20, of which 8000 -> 8.
SMALLER = (
    (r"^(pretrain .*--max-steps 10000 --out work/run)$", r"\1 --save-every 1000 --keep 10"),
    (r"hf://[\w/-]+\?name=[\w.-]+&limit=\d+", "hf://articles?limit=300"),  # a local folder
    (r"examples/glue\.toml", "tasks.toml"),
    (r"size=\d+MB", "size=300KB"),
    (r"rows=\d+", "rows=60"),
    (r"--vocab-size \d+", "--vocab-size 600"),
    (r"--max-seq-length \d+", "--max-seq-length 64"),
    (r"(--max-steps|--save-every|@)( ?\d+)000\b", r"\1\2"),
    (r"--max-steps \d{3,}|--for \d+[smh]", "--max-steps 3"),
    (r" --micro-batch-size \d+", ""),
    (r"--batch-size \d+", "--batch-size 4"),
    (r"--preset bert-\S+", "--preset bert-tiny"),
    (r"--preset modern-\S+", "--preset modern-nano"),
    (r"^(pretrain (?!.*--max-steps).*)", r"\1 --max-steps 3"),
    (r"^((?:finetune|benchmark) .*)", r"\1 --epochs 1 --learning-rate 1e-3"),
)
#: What is only parsed, and why.
NOT_RUN = {
    "torchrun": "eight GPUs; test_distributed.py runs torchrun",
    "--runner=": "a cluster; test_reproducible.py runs Dask on this machine",
    "/mnt/": "a folder that machines share",
    "$CLOZELINE_DATA/dumps/": "a dump; below it is read",
    "$CLOZELINE_DATA/amazon_polarity/": "labels of CLOZELINE_DATA",
    "tutorial/own/classifier": "so small a classifier gives all documents one label",
    "inspect work/run --shards work/mixed": "a run on that mixture; test_read_steps.py has one",
    "clozeline view": "it does not end; test_view.py ends it",
}
#: Folders that pages read and do not make: those of the README under other names.
SAME_AS = {
    "tok": "tokenizer",
    "run-2": "run",
    **dict.fromkeys(("shards-128", "shards-512", "wiki16", "wiki64", "wiki128"), "shards"),
    **dict.fromkeys(("wiki256", "mixed", "reviews", "reviews256"), "shards"),
}
#: Pages whose run is of a model that `transformers` has.
OF_BERT = ("huggingface", "languages")


def words_of(line):
    """The words after `clozeline`, with smaller sizes and with variables filled in."""
    line = line.removeprefix("clozeline ")
    for pattern, size in SMALLER:
        line = re.sub(pattern, size, line)
    return [os.path.expandvars(word) for word in shlex.split(line)]


def is_run(line):
    return not any(part in line for part in NOT_RUN)


def run(line, folder):
    """Run a printed command; what it makes may be there from another page."""
    words = words_of(line)
    *words, redirect, target = words if ">" in words else (*words, None, None)
    if "--out" in words:
        shutil.rmtree(folder / words[words.index("--out") + 1], ignore_errors=True)
    command, variables = [sys.executable, "-m", "clozeline", *words], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=os.environ | variables, capture_output=True, text=True
    )
    assert done.returncode == 0, (words, done.stderr)
    assert done.stdout.strip(), words
    if redirect:
        (folder / target).write_text(done.stdout)


def write_reviews(path, start):
    """A table of labelled reviews, as of one's own; its columns have their default names, too."""
    reviews = make_reviews(0, start, start + 60)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["review", "stars", "text", "label"])
        rows = zip(reviews.contents, reviews.labels.tolist(), strict=True)
        table.writerows((text, label, text, label) for text, label in rows)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder in which the README's commands have run, on text and labels of one's own."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("articles/a", "reviews/a", "wikipedia/train-0", "films"):
        (folder / name).parent.mkdir(exist_ok=True)
        write_parquet(folder / f"{name}.parquet", articles(400))
    write_reviews(folder / "train.csv", 0)
    write_reviews(folder / "test.csv", 1000)
    (folder / "imdb").mkdir()
    for name in ("train", "test"):
        table = read_csv(folder / f"{name}.csv").select(["text", "label"])
        pq.write_table(table, folder / "imdb" / f"{name}-0.parquet")
    (folder / "tasks.toml").write_text('[mine]\ntrain = "train.csv"\ntest = "test.csv"\n')
    for line in commands(README):
        run(line, folder)
    return folder


@pytest.mark.slow
def test_the_readme_leads_to_a_classifier_a_page_and_a_model_that_transformers_opens(home):
    """From nothing but text and a table of labels, with the default preset."""
    import transformers

    assert "Confusion matrix" in (home / "work/classifier/report.html").read_text()
    folder, text = home / "work" / "huggingface", "What a lovely lamp."
    with quiet_transformers():
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            folder, trust_remote_code=True
        )
    with torch.no_grad():
        theirs = model.eval()(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)
    ours = torch.as_tensor(load_classifier(home / "work/classifier").classify(text))
    torch.testing.assert_close(theirs, ours.to(theirs.dtype), atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES[1:] if any(map(is_run, commands(page.read_text())))],
    ids=lambda page: page.stem,
)
def test_every_printed_command_ends_well(page, home, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("CLOZELINE_DATA", str(home))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    lines = [line for line in commands(page.read_text()) if is_run(line)]
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    for name, same in SAME_AS.items():
        shutil.copytree(home / "work" / same, tmp_path / "work" / name)
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # the documents of the tutorial
    if page.stem in OF_BERT:
        run("pretrain work/shards --preset bert-mini --out work/run", tmp_path)
    for line in lines:
        run(line, tmp_path)
