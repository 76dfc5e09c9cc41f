"""README and manual say what is so, in plain words: commands, options, files and names exist."""

import ast
import doctest
import io
import re
import runpy
import tokenize

import pytest

import clozeline
from clozeline.pipeline.common.packages import own_version
from clozeline.pipeline.dataset.schema import example_schema
from clozeline.train.cli import main
from tests.repository.test_architecture import ROOMS
from tests.support import printed_commands
from tests.support.printed_commands import blocks, commands, parse
from tests.support.small_jobs import ROOT, python

PAGES = {path.name: path.read_text() for path in printed_commands.PAGES}
README = PAGES.pop("README.md")
TEXT = "\n".join([README, *PAGES.values()])
MAKEFILE = (ROOT / "Makefile").read_text()
COMMANDS = commands(TEXT)


REFERENCE = runpy.run_path(str(ROOT / "docs" / "write_reference.py"))


def test_the_reference_is_that_of_the_code():
    """If it is stale: python docs/write_reference.py"""
    assert REFERENCE["NAMES"].keys() == clozeline._MODULES.keys()
    for page, text in REFERENCE["pages"]().items():
        assert REFERENCE["written"](page, text) == PAGES[page], "docs/write_reference.py writes it"


def test_the_reference_is_text_that_renders_and_its_signatures_are_python():
    """No control characters of click's, no ">>>" that would be a quotation, types as written."""
    commands, python = PAGES["commands.md"], PAGES["python.md"]
    assert not re.search(r"[\x00-\x08]", commands + python)
    assert "    >>> " in python
    assert not re.search(r"^>>>", python, re.M)
    signatures = [block for language, block in blocks(python) if language == "text"]
    assert "preset(name: str, **changes: Any) -> BertConfig\n" in signatures
    for signature in signatures:
        ast.parse(f"def {signature.rstrip()}: ...")
        assert not re.search(r"Optional|Union|NoneType|: '|mappingproxy", signature)


def test_every_page_of_the_manual_is_in_its_navigation():
    navigation = (ROOT / "docs/mkdocs.yml").read_text().partition("nav:")[2]
    assert sorted(re.findall(r"[\w-]+\.md", navigation)) == sorted(PAGES)


def test_every_link_of_the_readme_leads_to_a_file():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert len(links) >= 8
    assert [link for link in links if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_line_is_one_that_clozeline_takes(line):
    parse(line)


def test_python_in_the_manual_compiles_and_imports_what_there_is():
    pages = {"README.md": README, **PAGES}
    code = [(name, block) for name, text in pages.items()
            for language, block in blocks(text) if language == "python"]  # fmt: skip
    assert len(code) >= 3
    for name, block in code:
        compile(block, name, "exec")
        ours = re.findall(r"^ *((?:from|import) clozeline.*)", block, re.M)
        exec("\n".join(ours), {})


def test_the_printed_config_file_is_read(tmp_path):
    (tables,) = [block for _, block in blocks(PAGES["commands.md"]) if block.startswith("[")]
    (tmp_path / "job.toml").write_text(tables)
    found = {name: parse(f"clozeline {name} --config {tmp_path}/job.toml --out x").params
             for name in re.findall(r"^\[(\w+)\]", tables, re.M)}  # fmt: skip
    assert found["shards"]["max_seq_length"] == 512
    assert found["pretrain"]["for_"] == "8h"


def test_every_command_and_option_in_running_text_exists():
    inline = "\n".join(re.findall(r"`([^`\n]+)`", TEXT))  # a command is not followed by the next
    commands = set(re.findall(r"clozeline ([a-z]+)\b", inline))
    options = [option for command in main.commands.values() for option in command.params]
    ours = {name for option in options for name in (*option.opts, *option.secondary_opts)}
    # of Beam, torchrun, TensorBoard, sbatch, a benchmark and the trial of engines
    others = {"--runner", "--local-addr", "--no-python", "--device", "--help", "--logdir"}
    others |= {"--nodes", "--signal", "--time", "--only", "--size"}
    assert len(commands) >= 6
    assert commands <= set(main.commands)
    assert set(re.findall(r"--[a-z][a-z-]+(?![\w-])", inline)) <= ours | others


def test_every_make_target_that_is_named_exists():
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", TEXT, re.M))
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
    assert named >= {"demo", "check", "bench", "help"}
    assert named <= targets


def test_every_file_that_is_named_exists():
    folders, endings = "tests|pipeline|model|train|deploy|examples", "py|sh|yaml|Dockerfile|ipynb"
    named = set(re.findall(rf"\b((?:{folders})/[\w/.-]+\.(?:{endings}))\b", TEXT))
    assert len(named) >= 8
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_test_that_is_named_exists():
    named = set(re.findall(r"`(test_\w+)`", TEXT))
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) >= 12
    assert named <= set(re.findall(r"^def (test_\w+)", tests, re.M))


def folders_of(tree: str) -> list[str]:
    """An indented list of names to paths: a line below another, two spaces deeper, is inside it."""
    above: list[str] = []
    paths = []
    for indent, name in re.findall(r"^( *)(\w+)/", tree, re.M):
        above = [*above[: len(indent) // 2], name]
        paths.append("/".join(above))
    return paths


TREE = folders_of(README[README.index("## Files") : README.index("## Development")])


def test_the_tree_of_files_has_a_line_for_each_room():
    on_disk = {
        path.parent.relative_to(ROOT).as_posix()
        for package in ("pipeline", "model", "train", "tests")
        for path in (ROOT / package).rglob("*.py")
    }
    others = {"deploy", "examples"}  # no packages
    assert sorted(TREE) == sorted(on_disk | others)
    assert all((ROOT / name).is_dir() for name in others)


def test_the_rooms_stand_in_the_order_in_which_they_may_import():
    for package, rooms in ROOMS.items():
        named = [path.partition("/")[2] for path in TREE if path.startswith(f"{package}/")]
        in_order = [room for room in rooms if room in named]
        assert [room for room in named if "/" not in room] == in_order


def test_the_columns_are_those_of_the_schema():
    table = PAGES["shards.md"].partition("`clozeline inspect` prints")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", table, re.M)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert named == example_schema(100, "", packed=True).names


# Plain words: comments, docstrings, messages and the manual use the field's terms


#: What not to write: what to write instead.
PLAIN = {
    r"(?:#: |^\"+)(?:Of|Instead of|How often|So many) ": "a phrase that stands alone",
    r"\bnot given:": "Default: ...",
    r"(?<!here )\bis no (?!longer|more|less)[a-z]+": "is not a ...",
    r"(?<!here )\bare no (?!longer|more|less|stale)[a-z]+": "are not ...",
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
#: Generated text, not ours to keep plain.
PROSE = ("pipeline/sources/sample/",)


def words_of(path):
    """Line number and text of every comment and string of a module, or of every line of a text."""
    text = path.read_text()
    if path.suffix != ".py":
        return list(enumerate(text.splitlines(), start=1))
    f_string = getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)  # from Python 3.12
    kinds = (tokenize.COMMENT, tokenize.STRING, f_string)
    return [
        (token.start[0] + offset, line)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in kinds
        for offset, line in enumerate(token.string.splitlines())
    ]


def findings(path, pattern):
    """ "train/cli.py:24: Mend that" """
    name = path.relative_to(ROOT).as_posix()
    return [
        f"{name}:{number}: {line.strip()}"
        for number, line in words_of(path)
        if re.search(pattern, line, re.IGNORECASE if pattern[0] == "\\" else 0)
    ]


FILES = [
    path
    for pattern in ("pipeline/**/*.py", "model/**/*.py", "train/**/*.py", "**/*.jinja")
    for path in sorted(ROOT.glob(pattern))
    if not path.relative_to(ROOT).as_posix().startswith(PROSE)
] + [ROOT / name for name in ("README.md", "Makefile", "pyproject.toml")]
FILES += sorted(ROOT.glob("docs/manual/*.md")) + sorted(ROOT.glob("deploy/*"))


@pytest.mark.parametrize("pattern", PLAIN)
def test_plain_words(pattern):
    found = [finding for path in FILES for finding in findings(path, pattern)]
    assert not found, f"{len(found)} lines; say it as: {PLAIN[pattern]}"


# The Python interface: its names are those of the reference, whose examples run


def test_type_checkers_and_python_read_the_same_names():
    body = ast.parse((ROOT / "clozeline/__init__.py").read_text()).body
    (block,) = (node for node in body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    typed = {alias.name: node.module for node in imports for alias in node.names}
    assert typed == {name: f"clozeline.{m}" for name, m in clozeline._MODULES.items()}


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


def test_a_star_brings_all_names_and_the_package_has_its_version():
    code = (
        "import clozeline; from clozeline import *; print(Loader.__name__, clozeline.__version__)"
    )
    assert python("-c", code) == f"Loader {own_version()}\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'clozeline' has no attribute 'Loder'"):
        clozeline.Loder  # noqa: B018


def test_data_names_import_no_torch():
    code = "import sys; from clozeline import DataConfig, read_manifest; "
    assert python("-c", code + "print({'torch', 'apache_beam'} & {*sys.modules})") == "set()\n"
