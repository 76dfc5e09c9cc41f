"""Packages that only some commands need: which extra installs each, and one line where it is not.

No module named 'nltk'  ->  nltk is not installed; run `pip install 'clozeline[pipeline]'`.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from clozeline.pipeline.common.errors import InputError, causes

#: Packages by their name in an import statement, with the extra of pyproject.toml.
EXTRAS = {
    **dict.fromkeys(("apache_beam", "datasets", "jinja2", "matplotlib"), "pipeline"),
    **dict.fromkeys(("mwparserfromhell", "nltk", "psutil", "regex", "webdataset"), "pipeline"),
    **dict.fromkeys(("dask", "distributed"), "dask"),
    **dict.fromkeys(("onnx", "onnxruntime", "onnxscript"), "onnx"),
    "sklearn": "baseline",
}


def own_version() -> str:
    """Clozeline's version, such as "0.1.0"; "unknown" in a checkout that is not installed."""
    try:
        return version("clozeline")
    except PackageNotFoundError:
        return "unknown"


def check_packages(what: str, *names: str) -> None:
    """Raises InputError, which names the extra, where `what` needs a package that is missing."""
    for name in names:
        if find_spec(name) is None:
            raise InputError(f"{what} needs {_not_installed(name)}")


def missing_package(error: BaseException | None) -> InputError | None:
    """The line for a failed import of a package of an extra; None for any other error."""
    for cause in causes(error):
        if isinstance(cause, ImportError) and (cause.name or "").partition(".")[0] in EXTRAS:
            return InputError(f"this command needs {_not_installed(str(cause.name))}")
    return None


def _not_installed(name: str) -> str:
    package = name.partition(".")[0]
    return f"{package}, which is not installed; run `pip install 'clozeline[{EXTRAS[package]}]'`."
