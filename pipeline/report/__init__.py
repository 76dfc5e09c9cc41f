"""A finished data set, drawn.

    work/shards  ->  work/shards/report.html (one static page), work/shards/README.md (a Hub card)

A section is a function of the summary; `sections.py` lists them in order.
"""
