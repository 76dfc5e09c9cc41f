"""The job: phases over blocks and buckets, by worker processes, tasks or Beam.

    tokenize blocks | merge groups of them | build shards | write the manifest

    build_shards(["wiki/*.parquet"], out="work/shards", ...)
    ->  work/shards/train-00000-of-00004.arrow, ..., work/shards/manifest.json

Tokenized blocks and the records of shards are files (the token cache), so only numbers of items
travel between workers, and a job that was killed continues from what is finished.

To add a phase, add a `Phase` to the list in `phases.py`:

    items   known before the job begins (blocks, buckets, numbers of bands, or a single one)
    files   a file per item in the token cache, named by a digest of all that its content depends
            on, the names of its inputs included; written with `whole_file`, its suffix cleared by
            `clear_cache`
    work    reads files of earlier phases by their names, does nothing where its own file exists

A later item that depends on the new files has them in its own name: see `Steps.record_path`.
"""
