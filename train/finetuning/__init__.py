"""A pretrained model and labelled text to a classifier, beside what it must beat.

    RUN, train.csv, test.csv  ->  CLASSIFIER/model.safetensors, CLASSIFIER/report.json

The same model without pretraining and a bag of words are scored on the same rows.
"""
