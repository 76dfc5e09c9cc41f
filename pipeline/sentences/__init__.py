"""Lines to sentences.

    "It was old. So it fell."  ->  data "It was old. So it fell.",  starts [0 12],  ends [11 23]

Sentences equal those of NLTK's Punkt, and are cut further in scripts that have other marks. In the
order in which text meets them: `splitter` takes lines; `candidates` finds in columns where a
sentence may end; `rules` decides, with the parameters of `punkt`; `marks` cuts other scripts;
`spans` holds what is found.
"""
