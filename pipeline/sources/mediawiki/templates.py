# ruff: noqa: RUF001, RUF002 (templates print dashes and signs)
"""Templates inside sentences: what a reader sees in their place, where the page itself says it.

    {{lang|de|Rom}}  ->  Rom    {{convert|5|to|9|km|mi}}  ->  5 to 9 km    {{snd}}  ->  " – "

A template is a page of its wiki, so what most of them show is unknown here. The table has those
that stand in running text and show an argument, the same in many wikis. Of a measure only the
first value is given, not its conversion.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

MAX_SHOWN = 20_000  #: characters of a template that shows its text, so that nesting stays linear
MAX_ARGUMENTS = 60

# The arguments that may be the text, the first that is given; "last" is the last without a name.
ARGUMENT_NAMES = {
    "1": (
        "nowrap|no wrap|nobr|nobreak|нобр|j|nobold|noitalic|small|smaller|big|larger|sup|sub|sc"
        "|sc2|smallcaps|smc|abbr|abbrv|tooltip|hover title|math|mvar|em|strong|kbd|var|code|tt"
        "|mono|bigmath|overline|underline|angbr|chem2|gloss|key|linktext|wikt|wp|nts|number|num"
        "|comment|ruby|ruby-ja|vanchor|visible anchor|anchored|flag|flagu|flagcountry|country"
        "|railgauge|track gauge|formatnum|μονάδα|columns-list|plainlist|plain list|flatlist"
        "|flat list|unicode|nastaliq|rtl-lang|not a typo|proper name|typo|sic|hebrew|vert header"
        "|longitem|normal|resize|lien|仮リンク|le|link-en|нп|нп2|нп3|нп4|нп5|не переведено|iw"
    ),
    "last": (
        "transl|transliteration|translit|script|polytonic|wikt-lang|тл|color|colour|font color"
        "|fontcolor|text color|background color|w"
    ),
    "2|1": "lang|langr|langx|link-interwiki|tsl",
    "s|c|t|hangul|kanji|1": "zh|korean|lang-zh|lang-ko|lang-ja",
    "lt|4|1": "ill|interlanguage link|ill-wd",
    "3|1": "redwd",
    "1|3|2": "nihongo|nihongo2|nihongo3|nihongo krt",
    "text|quote|content|1": (
        "quote|blockquote|quotation|cquote|bquote|quote box|rquote|quote text|centered pull quote"
        "|poem|poemquote|poem quote|block indent|verse translation|zitat|cita|citat|citation bloc"
        "|цитата"
    ),
}
KEYS = {name: keys for keys, names in ARGUMENT_NAMES.items() for name in names.split("|")}
LANGUAGE_NAME = re.compile(r"(lang-|vol-)[a-z]{2,3}(-[a-z]{2,8}){0,3}")

PRINTED = {
    " – ": "snd|spnd|spaced ndash|sndash|spaced en dash|– ",
    " — ": "spaced mdash|smdash|snds",
    "–": "ndash|en dash|–|endash",
    "—": "mdash|em dash|—|emdash",
    " · ": "·|,|dot|middot|•|bull|bullet|\\",
    " ": "nbsp|space|spaces|thinsp|thin space|pad|nnbsp|hair space|hsp|zwsp|sp",
    "&#39;": "'|`|apostrophe|okina",
    "&#39;s": "'s",
    '"': '"',
    "&#124;": "!|pipe",
    "&#61;": "=",
    "&#42;": "*|asterisk",
    "×": "x|×|times",
    "±": "±|plus-minus",
    "−": "−|minus",
    "°": "degree|degrees|deg",
}
LITERALS = {name: literal for literal, names in PRINTED.items() for name in names.split("|")}
SHIPS = ("HMS", "USS", "SS", "RMS", "HMAS", "HMCS", "USCGC", "MV", "MS", "SMS", "PS", "RV")
#: What is printed before each value; further values are parameters, which are not shown.
MARKS: dict[str, Sequence[str]] = {
    **dict.fromkeys(("as of", "asof"), ("As of ",)),
    **dict.fromkeys(("circa", "c.", "ca."), ("c. ",)),
    **{sign: (sign,) for sign in "£€¥$₹"},
    **{"us$": ("US$",), "usd": ("US$",), "gbp": ("£",), "inr": ("₹",), "euro": ("€",)},
    **{ship.lower(): (f"{ship} ",) for ship in SHIPS},
    **dict.fromkeys(("ship", "bibleref", "bibleverse"), ("", " ")),
    **dict.fromkeys(("hlist", "ubl", "unbulleted list"), ("", *(", ",) * MAX_ARGUMENTS)),
    **{"chem": ("",) * MAX_ARGUMENTS, "keypress": ("", *("+",) * MAX_ARGUMENTS), "e": ("×10^",)},
}
FRACTIONS = ("frac", "fraction", "sfrac")
FRACTION_MARKS = {1: ("1/",), 2: ("", "/"), 3: ("", " ", "/")}

MEASURES = ("convert", "cvt", "conv", "convertir", "unité", "unité/2", "unidad", "val", "nombre")
NUMBER = re.compile(r"[-+−±]?[0-9][0-9.,/+⁄ \xa0]*|\S*\{\{.*", re.DOTALL)
RANGES = {"-": "–", "–": "–", "to": " to ", "and": " and ", "or": " or ", "x": " × ", "by": " by "}
RANGES |= {"×": " × ", "*": " × ", "xx": " × ", "to(-)": " to ", "+/-": " ± ", "±": " ± "}
UNITS = {"C": "°C", "F": "°F", "K": "K", "sqmi": "sq mi", "sqft": "sq ft", "cuft": "cu ft"}
UNITS |= {"cumi": "cu mi", "usgal": "US gal", "impgal": "imp gal", "acre": "acres", "nmi": "nmi"}
THOUSANDS = {"e3": "thousand", "e6": "million", "e9": "billion"}
SMALLER_UNITS = ("in", "oz", "lb", "ft", "yd", "min", "s")

SHOWING_TEXT = frozenset((*KEYS, *LITERALS, *MARKS, *MEASURES, *FRACTIONS))

# What shows nothing, or a mark: without it, no words are missing.
NOTE = re.compile(
    r"cit|cite|sfn|harv|efn|refn?$|#tag|r$|rp$|cn$|fact|note|notelist|anchor|ipa|flagicon|flagdeco"
    r"|coord|webarchive|dead link|clarify|when|who|by whom|which|page needed|defaultsort|clear"
    r"|пост|πηγή|main$|see also|reflist|audio|listen|[a-z]{2,3} icon"
)


class Part(NamedTuple):
    """What is shown of a template: these characters of the page, or something instead of them."""

    start: int
    stop: int
    instead: str | None = None


def template_name(text: str, start: int, stop: int) -> str:
    """The name of the template whose content begins there: "Lang_x |de" -> "lang x"."""
    head = text[start : min(stop, start + 60)]
    name = head.partition("|")[0].replace("_", " ").strip().lower().removeprefix("template:")
    return "formatnum" if name.startswith("formatnum:") else name


def is_shown(name: str) -> bool:
    """Whether the template may show something that the page says."""
    return name in SHOWING_TEXT or LANGUAGE_NAME.fullmatch(name) is not None


def leaves_a_hole(text: str, start: int, stop: int) -> bool:
    """Whether words are missing from a sentence without the template at text[start:stop]."""
    before, after = text[max(start - 2, 0) : start], text[stop : stop + 2]
    if len(before) < 2 or before[1] not in " \xa0" or before[0] in " \n.!?:|*#;" or not after:
        return False
    if after[0] not in ",.;)" and not after.strip(" \xa0")[:1].isalnum():
        return False
    return not NOTE.match(template_name(text, start + 2, stop))


def shown_parts(name: str, text: str, cuts: Sequence[int], stop: int) -> list[Part] | None:
    """What a template shows, in order; None if that is unknown, or nothing.

    `cuts` are where its arguments begin, each behind a bar, and `stop` is where the last one ends.
    """
    if (literal := LITERALS.get(name)) is not None:
        return [Part(stop, stop, literal)]
    arguments = _arguments(text, cuts, stop)
    values = [part for key, part in arguments.items() if key.isdigit()]
    if name in MEASURES:
        return _measure(text, values, arguments)
    marks = FRACTION_MARKS.get(len(values), ()) if name in FRACTIONS else MARKS.get(name, ())
    if marks and values:
        if "lc" in arguments:
            marks = tuple(map(str.lower, marks))
        pairs = zip(marks, values, strict=False)
        return [p for mark, value in pairs for p in (Part(value.start, value.start, mark), value)]
    keys = KEYS.get(name, "1")
    if keys == "last":
        return values[-1:] or None
    return next(([arguments[key]] for key in keys.split("|") if key in arguments), None)


def _arguments(text: str, cuts: Sequence[int], stop: int) -> dict[str, Part]:
    """The arguments that are not empty, by name or number, without blanks around them."""
    arguments: dict[str, Part] = {}
    number = 0
    for start, after in pairwise([*cuts, stop + 1]):
        end = after - 1  # before the bar
        named = re.compile(r"\s*([\w .-]{1,30}?)\s*=").match(text, start, end)
        number += named is None
        begin = named.end() if named else start
        value = text[begin:end]
        begin += len(value) - len(value.lstrip())
        if stripped := value.strip():
            key = named[1].lower() if named else str(number)
            arguments[key] = Part(begin, begin + len(stripped))
    return arguments


def _measure(text: str, values: Sequence[Part], arguments: dict[str, Part]) -> list[Part] | None:
    """5|to|9|km|mi  ->  5 to 9 km,    6|ft|2|in|m  ->  6 ft 2 in,    5|e=6|u=m  ->  5×10^6 m"""
    words = [text[value.start : value.stop] for value in values]
    parts: list[Part] = []
    expected = True  # a number
    for i, (word, value) in enumerate(zip(words, values, strict=True)):
        after = words[i + 1 : i + 3]
        if expected:
            if not NUMBER.fullmatch(word):
                break
            parts.append(value)
        elif word.lower() in RANGES and after and NUMBER.fullmatch(after[0]):
            parts.append(Part(value.start, value.stop, RANGES[word.lower()]))
        elif not NUMBER.fullmatch(word):
            more = after[1:] and NUMBER.fullmatch(after[0]) and after[1] in SMALLER_UNITS
            parts.append(Part(value.start, value.stop, f" {_unit(word)}{' ' if more else ''}"))
            if not more:
                break
        else:
            break
        expected = not expected
    is_number = len(parts) == 1
    for key, mark in (("e", "×10^"), ("u", " "), ("ul", " ")):
        named = arguments.get(key)
        if is_number and named and named.start > parts[-1].stop:
            shown = mark + _unit(text[named.start : named.stop])
            parts.append(Part(named.start, named.stop, shown))
    return parts or None


def _unit(code: str) -> str:
    """km2  ->  km²,   C  ->  °C,   e6acre  ->  million acres,   km/h  ->  km/h"""
    if code[:2] in THOUSANDS and code[2:]:
        return f"{THOUSANDS[code[:2]]} {_unit(code[2:])}"
    return UNITS.get(code) or re.sub(
        r"(?<=[a-z])[23]\b", lambda power: "²³"[int(power[0]) - 2], code
    )
