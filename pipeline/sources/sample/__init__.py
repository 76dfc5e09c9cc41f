"""A built-in corpus, generated from a seed, so that everything runs without a network.

    "sample:articles?size=10MB&seed=0"  ->  articles in the manner of an encyclopedia
    "sample:reviews?rows=5000"          ->  labelled reviews: label, title, content

Every article and review is a pure function of (seed, number).
"""
