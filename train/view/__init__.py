"""`clozeline view`: data sets, runs and classifiers in a browser on this machine.

    work/shards work/run work/classifier  ->  Examples, Learning, Curves, Classifier, Try it

The pages of runs and classifiers, added to the server and the Examples page of `pipeline.view`.
"""
