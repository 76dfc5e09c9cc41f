"""The steps of a job, each from files to a file: no Beam, no processes.

    tokenize_block   a block of a source     ->  0f3a....tokens, in the token cache
    build_shard      its part of all tokens  ->  train-00003-of-00064.arrow, and a record of it
    finish_dataset   all records             ->  manifest.json

`context.py` has what all of them know, `steps.py` the first two, `finish.py` the last.
"""
