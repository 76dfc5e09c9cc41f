"""A finished model to answers: for single texts or a file.

CLASSIFIER, "A lovely lamp."       ->  positive 98%     (predict)
RUN, "The lid is [MASK]."          ->  clumsy 16.6%     (fill)
"""
