"""Sentence ends in scripts other than Latin, Greek and Cyrillic, where Punkt's `. ? !` are rare.

    text     你好。“再见。”他说。 Is it?
    Punkt    你好。“再见。”他说。 Is it?
    cut      你好。 | “再见。” | 他说。 | Is it?

Every other mark with Unicode's property Sentence_Terminal ends a sentence, together with the marks
and closing marks that follow it; no space is needed. Thai, Lao, Khmer, Burmese and Tibetan are
often written without such marks: there a long sentence is cut at spaces between words.

A document in Latin, Greek or Cyrillic letters keeps Punkt's sentences: a foreign name in it, such
as モーニング娘。, does not end a sentence.
"""

import re

# Literals, not the tables of an installed library: every version must give the same sentences.
#: Sentence_Terminal of Unicode 17 without `. ? !`, in the Basic Multilingual Plane and beyond.
BMP_MARKS = (
    r"\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b"
    r"\u1362\u1367\u1368\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e"
    r"\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f\u1c3b\u1c3c\u1c7e\u1c7f\u2024\u203c\u203d"
    r"\u2047-\u2049\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u2e60\u2e61\u3002\ua4ff\ua60e\ua60f\ua6f3"
    r"\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15"
    r"\ufe16\ufe52\ufe56\ufe57\uff01\uff0e\uff1f\uff61"
)
HIGHER_MARKS = (
    r"\U00010a56\U00010a57\U00010f55-\U00010f59\U00010f86-\U00010f89\U00011047\U00011048"
    r"\U000110be-\U000110c1\U00011141-\U00011143\U000111c5\U000111c6\U000111cd\U000111de\U000111df"
    r"\U00011238\U00011239\U0001123b\U0001123c\U000112a9\U000113d4\U000113d5\U0001144b\U0001144c"
    r"\U000115c2\U000115c3\U000115c9-\U000115d7\U00011641\U00011642\U0001173c-\U0001173e\U00011944"
    r"\U00011946\U00011a42\U00011a43\U00011a9b\U00011a9c\U00011c41\U00011c42\U00011ef7\U00011ef8"
    r"\U00011f43\U00011f44\U00016a6e\U00016a6f\U00016af5\U00016b37\U00016b38\U00016b44\U00016d6e"
    r"\U00016d6f\U00016e98\U0001bc9f\U0001da88"
)
MARKS = BMP_MARKS + HIGHER_MARKS
#: Closing punctuation and final quotes (categories Pe and Pf), and quotes that open and close.
CLOSING = (
    r"\"')\]}\u00bb\u0f3b\u0f3d\u169c\u2019\u201d\u203a\u2046\u207e\u208e\u2309\u230b\u232a\u2769"
    r"\u276b\u276d\u276f\u2771\u2773\u2775\u27c6\u27e7\u27e9\u27eb\u27ed\u27ef\u2984\u2986\u2988"
    r"\u298a\u298c\u298e\u2990\u2992\u2994\u2996\u2998\u29d9\u29db\u29fd\u2e03\u2e05\u2e0a\u2e0d"
    r"\u2e1d\u2e21\u2e23\u2e25\u2e27\u2e29\u2e56\u2e58\u2e5a\u2e5c\u3009\u300b\u300d\u300f\u3011"
    r"\u3015\u3017\u3019\u301b\u301e\u301f\ufd3e\ufe18\ufe36\ufe38\ufe3a\ufe3c\ufe3e\ufe40\ufe42"
    r"\ufe44\ufe48\ufe5a\ufe5c\ufe5e\uff02\uff07\uff09\uff3d\uff5d\uff60\uff63"
)
SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
#: Scripts without spaces between words, most of them without marks: Thai, Lao, Tibetan, Burmese,
#: Khmer, Tai Le, New Tai Lue, Tai Tham, Tai Viet.
UNSPACED = r"\u0e00-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\ua9e0-\ua9ff\uaa60-\uaadf"

#: Marks that end a sentence, as group 1, and the space after them. One range stands for all higher
#: marks in the search, which tests each character; the lookbehind is exact.
SENTENCE_END = re.compile(
    rf"([{BMP_MARKS}\U00010a56-\U0001da88](?<=[{MARKS}])(?:[.?!{CLOSING}]|[{SPACE}]*+[{MARKS}])*+)"
    rf"[{SPACE}]*+"
)
GAP = re.compile(rf"(?<=[{UNSPACED}])[{SPACE}]+(?=[{UNSPACED}])")
UNSPACED_RUN = re.compile(rf"[{UNSPACED}]+")
#: The longest sentence, in characters, that is not cut at spaces.
MAX_UNSPACED = 120

#: All bytes but those that in UTF-8 begin a character from U+0540 on outside U+2000 to U+2FFF.
NOT_FURTHER = bytes({*range(256)} - {0xE0, 0xE1, *range(0xD5, 0xE0), *range(0xE3, 0xF5)})

Span = tuple[int, int]


def is_other_script(text: str, data: bytes) -> bool:
    """Whether over a third of the characters are beyond Latin, Greek, Cyrillic and punctuation.

    `data` is the text in UTF-8, the fastest way to count them. Vietnamese has some, but too few.
    """
    if 3 * (len(data) - len(text)) <= len(text):  # each of them takes at least two bytes
        return False
    return 3 * len(data.translate(None, NOT_FURTHER)) > len(text)


def cut_sentence(text: str) -> list[Span]:
    """The spans of the sentences in what Punkt takes for one."""
    spans, start = [], 0
    for match in SENTENCE_END.finditer(text):
        spans += _cut_at_spaces(text, start, match.end(1))
        start = match.end()
    return spans + _cut_at_spaces(text, start, len(text)) if start < len(text) else spans


def _cut_at_spaces(text: str, start: int, end: int) -> list[Span]:
    """The sentence in spans of at most MAX_UNSPACED characters, as far as its spaces allow."""
    unspaced = sum(map(len, UNSPACED_RUN.findall(text, start, end)))
    if end - start <= MAX_UNSPACED or 2 * unspaced <= end - start:
        return [(start, end)]
    spans, cut = [], start
    gaps = [gap.span() for gap in GAP.finditer(text, start, end)]
    for (stop, resume), (reach, _) in zip(gaps, [*gaps[1:], (end, end)], strict=False):
        if reach - cut > MAX_UNSPACED:
            spans.append((cut, stop))
            cut = resume
    return [*spans, (cut, end)]
