"""Lines to sentences.

    "It was old. So it fell."  ->  data "It was old. So it fell.",  starts [0 12],  ends [11 23]

Sentences equal those of NLTK's Punkt, and are cut further in scripts that have other marks. In the
order in which text meets them: `splitter` takes lines, and holds what is found; `candidates` finds
in columns where a sentence may end; `punkt` decides; `marks` cuts other scripts.
"""
