"""Near-duplicates: all documents of a job -> those that are dropped, as a function of their texts.

search       words of a document -> band keys; equal keys -> pairs, their similarity, components
steps        band keys and words of each block, in two files beside its tokens; of all files of a
             job, pairs -> edges -> the documents of each shard to drop
"""
