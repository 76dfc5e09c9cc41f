"""The documents of a bucket to masked examples, as pure functions without files or Beam.

documents  [[the cat sat, it slept], [dogs ran]]
-> pairs   [CLS] the cat sat [SEP] dogs ran [SEP], next_sentence_label 1
-> masks   [CLS] the [MASK] sat [SEP] dogs ran [SEP], positions [2], labels [cat]
"""
