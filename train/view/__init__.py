"""`clozeline view` and `clozeline report`: data sets, runs and classifiers in a browser.

    work/shards work/run work/classifier  ->  Examples, Curves, Learning, Classifier, Try it

The pages of runs and classifiers, added to the server and the Examples page of
`clozeline.pipeline.view`. A report is what the server shows, as one file.
"""
