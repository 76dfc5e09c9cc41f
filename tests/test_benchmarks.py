"""Benchmarks are not run by the tests, but they import names that exist."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).parent / "benchmarks").glob("*.py"))


def ours(path: Path) -> list[tuple[str, str]]:
    """(module, name) of what a file imports from the project."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
        if node.module.partition(".")[0] in ("clozeline", "tests")
        for alias in node.names
    ]


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.stem)
def test_a_benchmark_imports_what_exists(path):
    names = ours(path)
    assert names, "a benchmark that measures nothing of ours"
    assert [f"{m}.{name}" for m, name in names if not hasattr(import_module(m), name)] == []
