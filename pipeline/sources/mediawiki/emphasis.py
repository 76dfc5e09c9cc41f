"""Bold and italics of wiki markup: which apostrophes of a line are marks and which are text.

    '''A''' ''b'' it's  ->  A b it's,    the ''Iliad'''s hero  ->  the Iliad's hero

The rules are those of MediaWiki's `Parser::doQuotes`, of which only the text is kept. A parser that
looks for pairs of marks takes the marks of an unbalanced line for text, or text for marks.
"""

import re

RUN = re.compile(r"''+")
EMPTY_EMPHASIS = re.compile(r" (''+)\0\1(?=[ ,.])")


def without_quotes(line: str) -> str:
    """The line without its marks; "\\0" where something was left out between marks.

    Of a run of four one apostrophe is text, of more than five all but five. Where bold and italics
    are both left open, one ''' is an apostrophe and italics. A line that began with marks begins
    with "\\0", so that what follows does not begin the line: '''#1''' is no list.
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
    """How likely ''' is bold, by what stands before it: not after one letter, rather after a space.

    L'''a  ->  0 where a space is before the L,    be'''a  ->  1,    a '''b  ->  2
    """
    if before.endswith(" "):
        return 2
    return 0 if before[-2:-1] == " " else 1
