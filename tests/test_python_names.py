"""The Python interface: one package, its names, and no confusion with another train.py."""

import ast
import doctest
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import clozeline

ROOT = Path(__file__).parent.parent
#: In the order of the data flow.
NAMES = runpy.run_path(str(ROOT / "docs" / "write_reference.py"))["NAMES"]


def python(*arguments: str, cwd: Path, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
    )


def test_type_checkers_and_python_read_the_same_names():
    (block,) = (
        node
        for node in ast.parse((ROOT / "clozeline/__init__.py").read_text()).body
        if isinstance(node, ast.If)
    )
    typed = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert typed == {name: f"clozeline.{m}" for name, m in clozeline._MODULES.items()}


def test_the_examples_of_the_reference_run_one_after_the_other(tmp_path, monkeypatch, capfd):
    """From generated text to answers, with str and without any Path; and without a word."""
    monkeypatch.chdir(tmp_path)
    names = {name: getattr(clozeline, name) for name in NAMES}
    runner = doctest.DocTestRunner(verbose=False)
    for name, found in names.items():
        [test] = doctest.DocTestFinder(recurse=False).find(found, name, module=False, globs=names)
        assert test.examples, f"{name} has no example"
        runner.run(test)
    printed = capfd.readouterr()
    assert runner.failures == 0, printed.out
    assert printed.err == ""


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'clozeline' has no attribute 'Loder'"):
        clozeline.Loder  # noqa: B018


def test_data_names_import_no_torch(tmp_path):
    code = (
        "import sys, json; from clozeline import DataConfig, read_manifest; "
        "print(json.dumps([name for name in ('torch', 'apache_beam') if name in sys.modules]))"
    )
    assert json.loads(python("-c", code, cwd=tmp_path).stdout) == []
