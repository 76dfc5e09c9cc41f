"""What all parts of the pipeline use: random numbers, ragged columns, files, stores, errors.

uniform_below(random_bits(stream_key(seed, "masks", 3), range(4)), 10)  ->  [7, 1, 4, 4]
offsets_of([2, 0, 3])                                                   ->  [0, 2, 2, 5]
"""
