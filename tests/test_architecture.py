"""The shape of the code, read off its syntax trees: who imports whom, and what is banned."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("pipeline", "model", "train")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).glob("*.py"))
#: What a GPU host that trains from Arrow shards does not have.
ONLY_INSIDE_FUNCTIONS = (
    "apache_beam", "nltk", "datasets", "webdataset", "mwparserfromhell", "sklearn", "transformers",
    "dask", "distributed", "jinja2", "matplotlib", "psutil", "upath",
)  # fmt: skip
TRAIN_MAY_IMPORT = {
    "pipeline." + name
    for name in (
        "config", "draws", "errors", "files", "manifest", "masks", "options", "page", "paths",
        "pictures", "ragged", "schema", "shards", "specs", "tables", "texts", "tokenizer", "tokens",
    )
}  # fmt: skip


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def module(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(nodes) -> set[str]:
    """Modules named by the import statements among the nodes."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, "imports are absolute"
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def everywhere(path: Path) -> set[str]:
    return imported(ast.walk(tree(path)))


def ours(names: set[str]) -> set[str]:
    known = {module(path) for path in SOURCES}
    return {name for name in names if name in known and "." in name}


def roots(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_imports_point_one_way(path):
    package, names = path.parent.name, everywhere(path)
    if package == "pipeline":
        assert not roots(names) & {"torch", "model", "train"}
    if package == "model":
        assert roots(names) & {*PACKAGES} <= {"model"}
    if package == "train" and path.name != "cli.py":
        assert {name for name in ours(names) if name.startswith("pipeline.")} <= TRAIN_MAY_IMPORT


def test_only_the_graph_imports_beam():
    assert [module(path) for path in SOURCES if "apache_beam" in roots(everywhere(path))] == [
        "pipeline.job.beam_graph"
    ]


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_what_only_some_need_is_imported_where_it_is_needed(path):
    at_the_top = roots(imported(tree(path).body))
    allowed = {"apache_beam"} if module(path) == "pipeline.job.beam_graph" else set()
    assert not at_the_top & set(ONLY_INSIDE_FUNCTIONS) - allowed


def test_no_two_modules_import_each_other():
    imports = {module(path): ours(everywhere(path)) for path in SOURCES}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, " -> ".join([*above, name])
        if name not in done:
            for other in imports.get(name, ()):
                visit(other, (*above, name))
            done.add(name)

    for name in imports:
        visit(name, ())


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_no_random_number_has_another_owner(path):
    """Global generators, NumPy's, `hash` and clocks do not reach a stored byte."""
    assert "random" not in everywhere(path)
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) != "np.random"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "hash"


@pytest.mark.parametrize("path", SOURCES, ids=module)
def test_files_and_functions_stay_small(path):
    if path.name != "sample_templates.py":  # text, not code
        assert len(path.read_text().splitlines()) <= 350
    assert ast.get_docstring(tree(path))
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name


def test_training_from_arrow_shards_needs_none_of_the_pipelines_libraries():
    code = f"""
import sys
for name in {ONLY_INSIDE_FUNCTIONS!r}:
    sys.modules[name] = None  # importing it fails, as where it is not installed
import train.cli, train.pretraining.pretrain, train.pretraining.evaluate, train.export
import train.finetuning.finetune, train.predict, train.fill
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_help_needs_neither_torch_nor_beam():
    code = """
import sys, contextlib, io
from train.cli import main
for words in ([], *([name] for name in main.commands)):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        main([*words, "--help"], standalone_mode=False)
    assert "Usage:" in out.getvalue()
print(sorted({"torch", "apache_beam", "pyarrow"} & set(sys.modules)))
"""
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True
    )
    assert run.stdout.strip() in ("[]", "['pyarrow']")
