"""The job: sources to a data set, by a Beam graph that every worker, task and engine runs.

    Blocks | Tokenize | AllTokens | Examples | AllShards | Manifest

    build_shards(["wiki/*.parquet"], out="work/shards", ...)
    ->  work/shards/train-00000-of-00004.arrow, ..., work/shards/manifest.json

Tokenized blocks and the records of shards are files (the token cache). Only references to them
travel in the graph, and a job that was killed continues from what is finished.

To add a stage, write a `Stage` in `pipeline/steps/stages.py` and add it to the graph:

    elements   known before the job begins (blocks, shards, numbers of bands, or a single one)
    files      a file for each in the token cache, named by a digest of all that its content
               depends on, the names of its inputs included; written with `whole_file`, its suffix
               cleared by `clear_cache`
    make       reads files of earlier stages by their names, writes its own unless it is there

A later stage that depends on the new files has them in its own names: see `Steps.record_path`.
"""
