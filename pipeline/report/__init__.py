"""Reports on a finished data set.

    work/shards  ->  work/shards/report.html (one static page), work/shards/README.md (a Hub card)

A section is a function summary -> Section; `sections.py` lists them in order. Reports on training
runs and classifiers use the same pages (`html.py`, `charts.py`).
"""
