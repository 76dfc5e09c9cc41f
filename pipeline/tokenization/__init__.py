"""Documents to sentences to WordPiece ids.

    "It was old. So it fell."
    ->  ["It was old.", "So it fell."]  ->  [[2009, 2001, 2214, 1012], [2061, 2009, 3062, 1012]]

Sentences are NLTK's Punkt and ids are `tokenizers`' WordPiece, exactly, but several times faster.
"""
