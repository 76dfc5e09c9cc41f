"""Fine-tunes a pretrained model on labelled text and compares it with baselines.

    RUN, train.csv, test.csv  ->  CLASSIFIER/model.safetensors, CLASSIFIER/report.json

The same model from scratch and a bag-of-words baseline are scored on the same test rows.
"""
