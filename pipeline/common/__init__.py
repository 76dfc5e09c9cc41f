"""What every room of the pipeline needs and none of them owns.

    uniform_below(random_bits(stream_key(seed, "masks", 3), range(4)), 10)  ->  [7, 1, 4, 4]

Counter-based random numbers, ragged columns, atomic files on any file system, user errors.
"""
