"""Unlabelled texts: a first model labels them, a second one learns from the surest ones.

    guess   negative  positive  positive  negative        labelled rows: as many of each class
    sure        0.99      0.61      0.97      0.80   ->   the first and the third text

Self-training (Yarowsky 1995). The second model starts from the pretrained weights again, sees these
texts once, then the labelled rows. Whether that helps is measured on held-out training rows, as for
any other plan (hyperparameters.py).
"""

import numpy as np

from clozeline.train.finetuning.training_loop import Labels, Logits
from clozeline.train.labelled.calibration import softmax
from clozeline.train.labelled.rows import Rows

SUREST = 0.2  # of the unlabelled texts


def surest(logits: Logits, labels: Labels, count: int) -> tuple[Rows, Labels]:
    """The texts whose class is surest, at most `count`, in their order, and these classes.

    `logits` [N, C] are of the texts, `labels` those of the rows that the model was trained on: of
    each class as large a part is taken as it has there, as far as the guesses suffice.
    """
    probabilities = softmax(logits)
    guesses, sure = probabilities.argmax(1), probabilities.max(1)
    by_class = np.bincount(labels, minlength=logits.shape[1]) / len(labels)
    order = np.argsort(-sure, kind="stable")
    taken = [order[guesses[order] == i][: round(count * part)] for i, part in enumerate(by_class)]
    rows = np.sort(np.concatenate(taken))
    return rows, guesses[rows]
