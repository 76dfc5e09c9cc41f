"""Labelled tables to texts, labels and token ids; labels and predictions to scores.

    train.csv, --text title          ->  texts [("Excellent",), ..], labels ["1", ..]
    labels [1, 0], predicted [1, 1]  ->  Scores: accuracy 0.5

It has the bag-of-words baseline, and no torch models.
"""
