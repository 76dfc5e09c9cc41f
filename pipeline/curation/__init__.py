"""Which documents stay: quality rules, excluded texts, near-duplicates. No Beam.

texts           ->  texts that pass every rule and share no 13 words with an excluded text
texts           ->  MinHash bands  ->  candidates  ->  edges  ->  components  ->  drop lists
"""
