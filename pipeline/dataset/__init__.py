"""The format of a finished data set: the schema of an example, shard files and the manifest.

Examples(input_ids, masked_lm_positions, ...)  ->  train-00000-of-00002.arrow  ->  Examples

OUT/train-00000-of-00002.arrow   OUT/tokenizer/   OUT/manifest.json   OUT/job.json
"""
