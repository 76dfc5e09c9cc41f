"""Shards to a pretrained model, or a run to its next step.

    work/shards  ->  RUN/checkpoints/step-00001000, RUN/metrics.jsonl, RUN/summary.json

Data meets the files in this order:

    cli              what is given
    start, recipes   where the run begins, and its numbers with their sources
    resume           the checkpoint that it begins with, intact and fitting
    pretrain         the run: its loader, its folder, its trainer
    initial_weights  model and optimizer before the first step; word_vectors for a new model
    trainer, step    the loop, and one step of it

A resumed run reads the very next example.
"""
