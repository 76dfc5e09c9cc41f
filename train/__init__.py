"""Shards to a pretrained model, to a classifier, to answers.

    work/shards  ->  work/run  ->  work/classifier  ->  positive 98%  A lovely lamp.

The subpackages, in import order (each may import only those above it):

    data         shards to batches, resumable at the next example
    engine       processes, precision, optimizers, schedules
    artifacts    folders on disk: runs, checkpoints, classifiers, Hugging Face
    store        the same folders under any URL
    monitoring   metrics, health warnings
    labelled     labelled tables to token ids, predictions to scores
    evaluation   a model and held-out examples to losses
    finetuning   a pretrained model and labelled text to a classifier
    pretraining  shards to a pretrained model
    estimate     a training config to memory, hours and cost on GPUs
    benchmark    a pretrained model on many tasks to one table of scores
    inference    a model and text to answers
    export       a model to a folder for other libraries
    report       runs and classifiers drawn on a page
"""
