"""Fine-tunes a pretrained model on labelled text and compares it with baselines.

    RUN, train.csv, test.csv  ->  CLASSIFIER/model.safetensors, CLASSIFIER/report.json

The files in the order in which data meets them:

    config.py            the options
    compare.py           `clozeline finetune`: for each model that is compared, the files below
    job.py               RUN, train.csv, test.csv       ->  model, rows, digests of both
    finetune.py          one model                      ->  search, training on all rows, scores
    search.py            results on held-out rows       ->  learning rate and epochs
    results.py           scores and weights of a model  ->  OUT/finetuned.json
                         all results                    ->  report.json, lines for a terminal
    classifier.py        the best model                 ->  a folder; texts  ->  probabilities

The same model from scratch and a bag-of-words baseline are scored on the same test rows. A
regression (`clozeline benchmark`) is the same with numbers as labels, up to results.py.
"""
