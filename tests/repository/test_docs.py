"""README and manual say what is so: their commands, options, targets, files and columns exist."""

import ast
import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

import clozeline
from clozeline.pipeline.dataset.schema import example_schema
from clozeline.train.cli import main
from tests.repository.test_architecture import ROOMS
from tests.support.printed_commands import PAGES as FILES
from tests.support.printed_commands import blocks, commands

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text() for path in FILES}
README = PAGES.pop("README.md")
TEXT = "\n".join([README, *PAGES.values()])
MAKEFILE = (ROOT / "Makefile").read_text()
COMMANDS = commands(TEXT)


def parse(line: str) -> click.Context:
    """The context of a command line, parsed and not run."""
    words = shlex.split(line.partition(" -- ")[0])
    if "torchrun" in words[0]:
        words = words[words.index("clozeline") :]
    words = words[1:]
    command = main.commands[words[0]]
    # Under its group, from which it takes -h.
    group = click.Context(main, **main.context_settings)
    return command.make_context(words[0], words[1:], parent=group)


def test_there_is_something_to_test():
    assert len(COMMANDS) >= 50
    assert len(PAGES) >= 12


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
