"""A local live page: a data set's examples in a browser, and the server that shows it.

    work/shards  ->  http://127.0.0.1:43521/examples?shard=0&row=120&only=random

Pages are HTML that the server writes from the templates of `clozeline.pipeline.report`; scripts
and styles are files of this package. `clozeline.train.view` adds the pages of runs and classifiers.
"""
