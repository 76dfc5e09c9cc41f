"""Raw text to shards of tokenized, sentence-paired, masked examples. Never imports torch.

    "articles/*.parquet"  ->  train-00003-of-00064.arrow, validation-..., manifest.json, tokenizer/

The subpackages, in import order (each may import only those above it):

    common        errors, paths, ragged columns, counter-based random numbers
    commandline   what every command shares: options, config files, the next command
    dataset       what a finished folder holds: schema, shards, manifest, buckets
    sources       files and URLs to documents
    sentences     documents to sentences
    tokenization  sentences to token ids
    curation      which documents stay: rules, near copies, exclusions, mixtures
    examples      bucketed documents to masked pairs
    steps         a block to a token file, a shard's part of all to a shard
    job           the Beam graph that runs the steps, its workers and tasks; what survives a crash
    beam          transforms for a Beam pipeline of one's own
    report        a finished data set drawn on a page
    verify        a finished data set checked, row by row
"""
