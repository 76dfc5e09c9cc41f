"""The shape of the code, read off its syntax trees: who imports whom, and what is banned."""

import ast
from functools import cache
from pathlib import Path

from tests.support.small_jobs import python

ROOT = Path(__file__).parents[2]
PACKAGES = ("clozeline", "pipeline", "model", "train")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
#: What a GPU host that trains from Arrow shards does not have.
ONLY_INSIDE_FUNCTIONS = (
    "apache_beam", "nltk", "datasets", "webdataset", "mwparserfromhell", "sklearn", "transformers",
    "dask", "distributed", "jinja2", "matplotlib", "psutil", "upath", "onnx", "onnxruntime",
    "onnxscript", "wandb", "mlflow",
)  # fmt: skip
#: The rooms of each package, and the files beside them, in the order in which they may import.
ROOMS = {
    "pipeline": (
        "common", "commandline", "config", "dataset", "sources", "sentences", "tokenization",
        "curation", "examples", "steps", "job", "beam", "report", "verify", "cli",
    ),
    "model": ("config", "positions", "cpu_kernels", "attention", "bert", "heads", "huggingface"),
    "train": (
        "config", "data", "engine", "store", "artifacts", "monitoring", "labelled",
        "evaluation", "finetuning", "pretraining", "estimate", "benchmark", "inference", "export",
        "report", "cli",
    ),
    "clozeline": ("beam", "__main__"),
}  # fmt: skip
#: The graph, and what runs it on this machine.
BEAM = (
    "clozeline.pipeline.beam.transforms",
    *(f"clozeline.pipeline.commandline.{name}" for name in ("beam_options", "beam_worker")),
    *(f"clozeline.pipeline.job.{name}" for name in ("graph", "texts")),
)
#: What training needs of the pipeline: no Beam, no job.
TRAIN_MAY_IMPORT = {
    "pipeline": {
        "common", "commandline", "config", "dataset", "sources", "sentences", "tokenization",
        "curation", "examples",
    },
    "model": set(ROOMS["model"]),
    "train": set(ROOMS["train"]),
}  # fmt: skip
#: Pages of runs and classifiers are drawn with the parts of the pages of a data set.
PAGES = {"report"}


@cache
def tree(path):
    return ast.parse(path.read_text())


def module(path):
    """The name under which it is installed."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if name.startswith("clozeline") else f"clozeline.{name}"


def imported(nodes):
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


@cache
def everywhere(path):
    return imported(ast.walk(tree(path)))


@cache
def known():
    return {module(path) for path in SOURCES}


def ours(names):
    """Those of our modules, without the packages that hold the rooms."""
    return {name for name in names & known() if room(name)[1]}


def roots(names):
    return {name.partition(".")[0] for name in names}


def room(name):
    """ "clozeline.pipeline.sources.mediawiki.dump" -> ("pipeline", "sources")"""
    first, package, here = (*name.split(".")[:3], "", "")[:3]
    return (package, here) if package in ROOMS else (first, package)


def test_every_file_is_in_a_room():
    found = {room(module(path)) for path in SOURCES} - {(name, "") for name in ROOMS}
    assert found == {(package, name) for package, names in ROOMS.items() for name in names}


def test_packages_import_one_way():
    for path in SOURCES:
        package, names = path.relative_to(ROOT).parts[0], everywhere(path)
        if package in ("pipeline", "model"):
            assert {room(name)[0] for name in ours(names)} <= {package}, path
        if package == "pipeline":
            assert "torch" not in roots(names), path
        if package == "train" and path.name != "cli.py":
            is_page = room(module(path)) == ("train", "report")
            for name in ours(names):
                other, there = room(name)
                is_part = is_page and there in PAGES
                assert is_part or there in TRAIN_MAY_IMPORT[other], f"{path} imports {name}"


def test_no_import_climbs():
    """A room imports from itself and from those before it."""
    for path in SOURCES:
        package, here = room(module(path))
        if not here:  # a package's own __init__
            assert path == FACADE or not ours(everywhere(path)), path
            continue
        order = ROOMS[package]
        for name in ours(everywhere(path)):
            other, there = room(name)
            climbs = other == package and order.index(there) > order.index(here)
            assert not climbs, f"{module(path)} imports {name}"


#: Its __init__ is the Python interface: names of the other packages.
FACADE = ROOT / "clozeline" / "__init__.py"
INITS = [path for path in SOURCES if path.name == "__init__.py" and path != FACADE]


def test_a_room_begins_with_what_it_is():
    """What goes in, what comes out and an example; no code."""
    for path in INITS:
        assert [type(node) for node in tree(path).body] == [ast.Expr], path
        assert "->" in ast.get_docstring(tree(path)), path


def test_only_the_graph_imports_beam():
    assert [module(path) for path in SOURCES if "apache_beam" in roots(everywhere(path))] == [*BEAM]


def test_what_only_some_need_is_imported_where_it_is_needed():
    for path in SOURCES:
        allowed = {"apache_beam"} if module(path) in BEAM else set()
        if path.name == "modeling_clozeline.py":  # copied beside weights; nothing here imports it
            allowed = {"transformers"}
        at_the_top = roots(imported(tree(path).body)) & {*ONLY_INSIDE_FUNCTIONS}
        assert at_the_top <= allowed, path


def test_no_two_modules_import_each_other():
    imports = {module(path): ours(everywhere(path)) for path in SOURCES}
    done: set[str] = set()

    def visit(name, above):
        assert name not in above, " -> ".join([*above, name])
        if name not in done:
            for other in imports.get(name, ()):
                visit(other, (*above, name))
            done.add(name)

    for name in imports:
        visit(name, ())


def test_no_random_number_has_another_owner():
    """Global generators, NumPy's, `hash` and clocks do not reach a stored byte."""
    for path in SOURCES:
        assert "random" not in everywhere(path), path
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Attribute):
                assert ast.unparse(node) != "np.random", path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "hash", path


def test_files_and_functions_stay_small():
    for path in SOURCES:
        assert len(path.read_text().splitlines()) <= 350, path
        assert ast.get_docstring(tree(path)), path
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 50, f"{path}: {node.name}"


def test_training_from_arrow_shards_needs_none_of_the_pipelines_libraries():
    code = f"""
import sys
for name in {ONLY_INSIDE_FUNCTIONS!r}:
    sys.modules[name] = None  # importing it fails, as where it is not installed
import clozeline.train.cli, clozeline.train.pretraining.pretrain
import clozeline.train.evaluation.evaluate, clozeline.train.finetuning.compare
import clozeline.train.export.export, clozeline.train.inference.predict
import clozeline.train.inference.fill
"""
    python("-c", code)


def test_no_class_is_loaded_twice():
    """From the repository's root `train` can be imported, too: as a second copy of each class."""
    for path in SOURCES:
        assert not roots(everywhere(path)) & {"model", "pipeline", "train"}, path
