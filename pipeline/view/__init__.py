"""Pages: a data set in a browser, from a local server or as one file, a report.

    work/shards  ->  http://127.0.0.1:43521/examples?shard=0&row=120&only=random
    work/shards  ->  work/shards/report.html

Pages are HTML from the templates here and in `clozeline.pipeline.report`; scripts and styles are
files of this package. `clozeline.train.view` adds the pages of runs and classifiers.
"""
