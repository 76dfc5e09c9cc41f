"""A finished data set in words, numbers and charts, for a terminal, a page and the Hub.

    work/shards  ->  statistics of all rows  ->  sections of the Data set page (`sections.py`)
    work/shards  ->  README.md, a Hub card   ->  lines of `clozeline inspect`

A section is a function summary -> Section, tables and charts (`html.py`, `charts.py`);
the pages of runs and classifiers have the same parts.
"""
