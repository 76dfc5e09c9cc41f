"""Runs and classifiers as chapters of a page, and the steps of a run as examples in a terminal.

work/run work/run-2  ->  Chapter("Runs", ...)    work/classifier  ->  Chapter("Classifier", ...)
chapters             ->  report.html, or the page that `clozeline view` serves
work/run, steps A-B  ->  the examples that those steps read
"""
