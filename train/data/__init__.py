"""Shards to batches of tensors, in an order that is a function of (data set, seed, position).

    work/shards, position 512  ->  Batch(input_ids [256, 128], masked_lm_positions [256, 20], ...)

The global batches are the same for any number of processes, workers and accumulation steps.
"""
