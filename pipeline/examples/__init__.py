"""Bucketed documents to masked examples. No files, no Beam.

    documents  [[the cat sat, it slept], [dogs ran]]
    -> pairs   [CLS] the cat sat [SEP] dogs ran [SEP], next_sentence_label 1
    -> masks   [CLS] the [MASK] sat [SEP] dogs ran [SEP], positions [2], labels [cat]

Pure functions of a bucket's columns, the config and the seed.
"""
