"""The name of the file of excluded texts."""

from dataclasses import replace
from pathlib import Path

from clozeline.pipeline.config import DataConfig
from clozeline.pipeline.dataset.buckets import Buckets
from clozeline.pipeline.job.context import JobContext
from clozeline.pipeline.sources.block import Block


def test_it_changes_with_all_that_the_texts_depend_on():
    context = JobContext(
        out_dir=Path("out"),
        cache_dir=Path("cache"),
        config=DataConfig(),
        buckets=Buckets(num_train=1, num_validation=0, validation=0.0),
        tokenizer_digest="",
        vocab_size=1,
        sources_digest="",
    )
    a, b = (Block(path=name, format="csv", stop=1, version="1") for name in "ab")
    excluded = [
        (("*", (a, b)),),
        (("a", (a,)), ("b", (b,))),
        (("*", (replace(a, text_columns=("title",)), b)),),
        (("*", (replace(a, max_document_bytes=9), b)),),
    ]
    names = {replace(context, excluded=one).excluded_path for one in excluded}
    assert len(names) == len(excluded)
