"""Fine-tunes a pretrained model on labelled text and compares it with baselines.

    RUN, train.csv, test.csv  ->  CLASSIFIER/model.safetensors, CLASSIFIER/report.json

The files in the order in which data meets them:

    config.py            the options
    finetune.py          `clozeline finetune`: the files below, one after another
    job.py               RUN, train.csv, test.csv       ->  model, rows, digests of both
    compared_models.py   which models: pretrained, from scratch, bag-of-words; sizes and seeds
    one_model.py         one of them                    ->  search, then training on all rows
    hyperparameters.py   results on held-out rows       ->  learning rate and epochs, temperature
    training_loop.py     rows, learning rate, epochs    ->  weights, logits
    results.py           scores and weights of a model  ->  OUT/results/pretrained-1000-0.json
    classifier.py        the best model                 ->  a folder; texts  ->  probabilities
    report.py            results, the test logits       ->  report.json, lines for a terminal
    label_efficiency.py  results by number of rows      ->  a table, a figure, a note

The same model from scratch and a bag-of-words baseline are scored on the same test rows. A
regression (`clozeline benchmark`) is the same with numbers as labels, up to results.py.
"""
