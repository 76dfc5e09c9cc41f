"""Shards to a pretrained model: the loop, one step of it, and where it resumes.

    work/shards  ->  RUN/checkpoints/step-00001000, RUN/metrics.jsonl, RUN/summary.json

A resumed run reads the very next example.
"""
