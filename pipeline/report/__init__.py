"""A finished data set in words, numbers and charts, for a terminal and a page.

    work/shards  ->  Chapter("Data set", ...)  ->  report.html
    work/shards  ->  lines of `clozeline inspect`

A page is a list of chapters, a chapter a list of sections (`page.py`): tables, charts, examples.
`train/report` makes the chapters of runs and classifiers.
"""
