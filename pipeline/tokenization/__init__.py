"""Documents to sentences to token ids.

    "It was old. So it fell."
    ->  ["It was old.", "So it fell."]  ->  [[2009, 2001, 2214, 1012], [2061, 2009, 3062, 1012]]

Sentences equal those of NLTK's Punkt, and ids those of the `tokenizers` library, for WordPiece, BPE
and Unigram, but both are computed several times faster.
"""
