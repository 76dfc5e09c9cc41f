"""The job: a Beam graph over blocks and buckets.

    list blocks | tokenize a block | group by bucket | build a shard | write the manifest

    build_shards(["wiki/*.parquet"], out="work/shards", ...)
    ->  work/shards/train-00000-of-00004.arrow, ..., work/shards/manifest.json

Tokenized blocks are files (the token cache), so only references travel between workers and a job
that was killed continues from what is finished.
"""
