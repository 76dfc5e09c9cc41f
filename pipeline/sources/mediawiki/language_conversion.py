"""Language conversion, -{...}-: what a reader sees, in every language that has it."""

import re

# -{text}-, -{zh-hans:A; zh-hant:B}-, -{A|zh-cn:A; zh-tw:B}-, -{H|X=>zh-hans:A}-
CONVERSION = re.compile(r"-\{(?!\{)((?:(?!-\{(?!\{)|\}-).){0,4000})\}-", re.DOTALL)
CONVERSION_FLAGS = re.compile(r"\s*([A-Z+-](?:\s*;\s*[A-Z+-])*|[a-z]{2,3}(?:-[a-z;\s-]*)?)\s*\|")
VARIANT = re.compile(r"(?:^|;)\s*(?:[^;:]*=>\s*)?([a-z]{2,3}(?:-[a-z]{2,8})*)\s*:", re.DOTALL)
HIDING_FLAGS = frozenset("HT-")
MAX_NESTED = 10  #: levels; deeper ones stay as they are, so that a page takes linear time


def converted(text: str) -> str:
    """Without the marks of language conversion, innermost first, as MediaWiki shows them.

    -{zh-hans:A; zh-hant:B}-  ->  A,    -{H|zh-cn:A; zh-tw:B}-  ->  (nothing)
    """
    for _ in range(MAX_NESTED):
        text, found = CONVERSION.subn(_variant, text)
        if not found:
            break
    return text


def _variant(conversion: re.Match[str]) -> str:
    """What a conversion shows: the variant of the wiki as such ("zh"), else the first one."""
    rule = conversion[1]
    if flags := CONVERSION_FLAGS.match(rule):
        if HIDING_FLAGS & set(map(str.strip, flags[1].split(";"))):
            return ""
        rule = rule[flags.end() :]
    variants = list(VARIANT.finditer(rule))
    if not variants:
        return rule
    stops = [*(variant.start() for variant in variants[1:]), len(rule)]
    texts = {
        variant[1]: rule[variant.end() : stop].strip().rstrip(";").rstrip()
        for variant, stop in reversed(list(zip(variants, stops, strict=True)))
    }
    return texts[min(reversed(texts), key=lambda code: "-" in code)]
