"""The Python interface: one package, its names, and no confusion with another train.py."""

import ast
import doctest
import runpy

import pytest

import clozeline
from clozeline.pipeline.common.packages import own_version
from tests.support.small_jobs import ROOT, python

#: In the order of the data flow.
NAMES = runpy.run_path(str(ROOT / "docs" / "write_reference.py"))["NAMES"]


def test_type_checkers_and_python_read_the_same_names():
    body = ast.parse((ROOT / "clozeline/__init__.py").read_text()).body
    (block,) = (node for node in body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    typed = {alias.name: node.module for node in imports for alias in node.names}
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
