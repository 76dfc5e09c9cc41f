"""Near-duplicates: all documents of a job -> those that are dropped, as a function of their texts.

signatures   words of a document   ->  band keys
files        band keys and words of a block, in two files beside its tokens
pairs        equal band keys       ->  pairs, their similarity, components
steps        all files of a job    ->  pairs -> edges -> the documents of each shard to drop
"""
