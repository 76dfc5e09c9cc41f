"""Transforms for a Beam pipeline of your own: documents in, a data set out.

    root | ReadDocuments("articles/*.parquet") | WriteDataSet("work/shards", ...)  ->  a manifest

They are those of `clozeline shards --token-cache none`, and give the same bytes.
"""
