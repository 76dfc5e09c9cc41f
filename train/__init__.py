"""Shards to a pretrained model, to a classifier, to answers.

    work/shards  ->  work/run  ->  work/classifier  ->  positive 98%  A lovely lamp.

The rooms, in the order in which they may import each other:

    data         shards to batches, resumable at the next example
    engine       processes, precision, optimizers, schedules
    artifacts    folders on disk: runs, checkpoints, classifiers, Hugging Face
    monitoring   metrics, health warnings, the report of a run
    finetuning   a pretrained model and labelled text to a classifier
    pretraining  shards to a pretrained model
"""
