"""Bold and italics in wiki markup: which apostrophes of a line are markup and which are text.

    '''A''' ''b'' it's  ->  A b it's,    the ''Iliad'''s hero  ->  the Iliad's hero

The rules are those of MediaWiki's `Parser::doQuotes`; only the text is kept. A parser that searches
for pairs of marks gets lines with unbalanced marks wrong.
"""

import re

RUN = re.compile(r"''+")
EMPTY_EMPHASIS = re.compile(r" (''+)\0\1(?=[ ,.])")


def strip_emphasis(line: str) -> str:
    """The line without its marks. A line that began with marks begins with "\\0".

    In a run of four apostrophes, one is text; in a run of more than five, all but five are. If bold
    and italics are both left open, one ''' is an apostrophe and italics. The "\\0" keeps what
    follows from beginning the line: '''#1''' is not a list.
    """
    if "''" not in line:
        return line
    line = EMPTY_EMPHASIS.sub("", line)
    texts = RUN.split(line)
    runs = list(map(len, RUN.findall(line)))
    marks = [3 if run == 4 else min(run, 5) for run in runs]
    for i, (run, mark) in enumerate(zip(runs, marks, strict=True)):
        texts[i] += "'" * (run - mark)
    bold = [i for i, mark in enumerate(marks) if mark == 3]
    both = marks.count(5)
    if bold and (len(bold) + both) % 2 and (marks.count(2) + both) % 2:
        texts[min(bold, key=lambda i: _likely_bold(texts[i]))] += "'"
    if not texts[0].strip():
        texts[0] += "\0"
    return "".join(texts)


def _likely_bold(before: str) -> int:
    """How likely ''' is bold, by what precedes it: least after a single letter, most after a space.

    L'''a  ->  0 where a space is before the L,    be'''a  ->  1,    a '''b  ->  2
    """
    if before.endswith(" "):
        return 2
    return 0 if before[-2:-1] == " " else 1
