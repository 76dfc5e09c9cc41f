"""Files and URLs to documents.

    list_blocks(["wiki/*.parquet"])  ->  [Block(path="wiki/a.parquet", start=0, stop=4), ...]
    read_block(block)                ->  Documents(texts=["Rome is a city.", ...], rejected=[])

A block is a slice of a source: the unit of work and of retry.
"""
