"""The options of a source, as in a URL.

sample:articles?size=2MB                    the format's own, see `parse_query`
hf://imdb?split=train&text=text&limit=1000  both kinds
data/*.parquet?text=title,content&repeat=2  those of every source, see `split_options`
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from urllib.parse import unquote

from clozeline.pipeline.common.config_checks import token_number
from clozeline.pipeline.common.errors import InputError

#: How text is read: a value besides the default, and the format that knows it.
READING = {
    "document": ("line", "text"),
    "lines": ("wrapped", "text"),
    "holes": ("drop", "mediawiki"),
    "format": ("text", "text"),
}
COMMON = ("text", "repeat", "limit", "tokens", *READING)
#: A glob may hold a "?", and so may a URL: only what begins with a known option is a query.
QUERY = re.compile(rf"\?((?:{'|'.join(COMMON)})=[^?]*)$")
LOCAL = ("file", "local", "hf")  #: schemes of URLs that may name a folder of this machine
MAX_REPEAT = 1000


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """The options that every source may have."""

    text_columns: tuple[str, ...] | None = None  #: None: those of --text-columns
    repeat: int = 1  #: how many times as many examples are made
    limit: int | None = None  #: only the first documents
    tokens: int | None = None  #: how many tokens of its documents are used
    reading: tuple[str, ...] = ()  #: those of READING that are given, such as "document=line"
    query: str = ""  #: the options as they were given, in a fixed order


def split_options(source: str, *, is_url: bool) -> tuple[str, SourceOptions]:
    """The source without the options that every source may have, and those options.

    `is_url` says that everything after the first "?" is a query, in which the format may have
    options of its own. Raises InputError for a wrong value, and for an unknown option after a known
    one.
    """
    if is_url:
        name, _, query = source.partition("?")
        parts = list(filter(None, query.split("&")))
        own = ("limit",) if source.startswith("hf://") else ()  # rows that are not downloaded
        common = set(COMMON).difference(own)
        rest = [part for part in parts if part.partition("=")[0] not in common]
        name += f"?{'&'.join(rest)}" if rest else ""
        query = "&".join(part for part in parts if part not in rest)
    elif match := QUERY.search(source):
        name, query = source[: match.start()], match[1]
    else:
        name, query = source, ""
    return name, _parse_options(source, query) if query else SourceOptions()


def check_reading(path: str, format: str, reading: Sequence[str]) -> None:
    """Raises InputError for an option that the format of the file does not know."""
    for option in reading:
        known_to = READING[option.partition("=")[0]][1]
        if format != known_to:
            raise InputError(f"{path} is {format}; ?{option} is for {known_to}, so leave it out")


def _parse_options(source: str, query: str) -> SourceOptions:
    given = parse_query(source, query, {}, others=COMMON)
    columns = tuple(given["text"].split(",")) if "text" in given else None
    if columns and not all(columns):
        raise InputError(f"{source}: text names columns, as in text=title,content")
    repeat = whole_number(source, "repeat", given.get("repeat", "1"))
    if not 1 <= repeat <= MAX_REPEAT:
        raise InputError(f"{source}: repeat is from 1 to {MAX_REPEAT}, not {repeat}")
    limit = whole_number(source, "limit", given["limit"], least=1) if "limit" in given else None
    tokens = token_number(given["tokens"], f"{source}: tokens") if "tokens" in given else None
    if {"repeat", "tokens"} <= given.keys():
        raise InputError(f"{source}: give one of repeat and tokens")
    for name, (value, _) in READING.items():
        if given.get(name, value) != value:
            raise InputError(f"{source}: {name} is '{value}' or left out, not '{given[name]}'")
    ordered = "&".join(f"{name}={given[name]}" for name in COMMON if name in given)
    return SourceOptions(
        text_columns=columns,
        repeat=repeat,
        limit=limit,
        tokens=tokens,
        reading=tuple(f"{name}={given[name]}" for name in READING if name in given),
        query=ordered,
    )


def parse_query(
    source: str, query: str, defaults: Mapping[str, str], *, others: Sequence[str] = ()
) -> dict[str, str]:
    """The options of a query, with defaults for those that it does not name.

    `others` are options that have no default. In a value "%26" is "&", and "+" is itself. Raises
    InputError for an option that is given twice, and for an unknown one, with a list of the known.
    """
    options, known = dict(defaults), list(dict.fromkeys([*defaults, *others]))
    parts = [part.partition("=") for part in query.split("&") if part]
    names = [name for name, *_ in parts]
    for name, _, value in parts:
        if name not in known:
            raise InputError(f"{source}: no option '{name}'; the options are {', '.join(known)}")
        if names.count(name) > 1:
            raise InputError(
                f"{source}: {name} is given {names.count(name)} times; give it once (several "
                "columns are text=title,content)"
            )
        options[name] = unquote(value)
    return options


def portable_names(sources: Sequence[str]) -> list[str]:
    """The sources without the folders of local ones, but for what keeps them apart.

    /data/sst2/a.csv?limit=9, /data/imdb/a.csv, file:///data/b.csv, s3://b/a.csv
    ->  sst2/a.csv?limit=9, imdb/a.csv, file:///b.csv, s3://b/a.csv
    """
    for depth in count(1):
        names = [_without_folders(source, depth) for source in sources]
        if len(set(names)) == len(set(sources)):
            break
    return names


def _without_folders(source: str, depth: int) -> str:
    """The last parts of a local source's path, and its options."""
    scheme, mark, path = source.partition("://") if "://" in source else ("", "", source)
    if mark and not (scheme in LOCAL and path.startswith("/")):
        return source
    root = path[: len(mark[2:])]  # of a URL
    match = re.search(r"\?", path) if scheme == "hf" else QUERY.search(path)
    folders = path[len(root) : match.start() if match else None].rstrip("/")
    end = path[len(root) + len(folders) :]
    return scheme + mark + root + "/".join(folders.split("/")[-depth:]) + end


def whole_number(source: str, name: str, text: str, *, least: int = 0) -> int:
    """The number that an option gives. Raises InputError."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise InputError(f"{source}: {name} is a whole number, as in {name}=5000, not '{text}'")
    if int(text) < least:
        raise InputError(f"{source}: {name} is {text}; give at least {least}")
    return int(text)


def fraction(source: str, name: str, text: str) -> float:
    """The number from 0 to 1 that an option gives. Raises InputError."""
    if not re.fullmatch(r"0(\.[0-9]{1,4})?|1(\.0{1,4})?", text):
        raise InputError(f"{source}: {name} is from 0 to 1, as in {name}=0.25, not '{text}'")
    return float(text)
