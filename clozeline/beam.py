"""Beam transforms: text to a data set, as parts of a pipeline of your own.

import apache_beam as beam
from clozeline.beam import ReadDocuments, WriteDataSet

with beam.Pipeline(runner="FnApiRunner") as root:
    documents = root | ReadDocuments("articles/*.parquet")
    documents | WriteDataSet("work/shards", tokenizer="work/tokenizer", num_shards=64)
"""

from clozeline.pipeline.beam.transforms import MakeExamples as MakeExamples
from clozeline.pipeline.beam.transforms import ReadDocuments as ReadDocuments
from clozeline.pipeline.beam.transforms import WriteDataSet as WriteDataSet

__all__ = ["MakeExamples", "ReadDocuments", "WriteDataSet"]
