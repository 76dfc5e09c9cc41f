"""A finished model to answers: on the command line, for a file, or over HTTP.

CLASSIFIER, "A lovely lamp."       ->  positive 98%     (predict, serve)
RUN, "The lid is [MASK]."          ->  clumsy 16.6%     (fill)
"""
