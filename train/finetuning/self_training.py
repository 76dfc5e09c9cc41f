"""Unlabelled texts: a first model labels them, a second one learns from the surest fifth.

    label   negative  positive  positive  negative       labelled rows: as many of each class
    sure        0.99      0.61      0.97      0.80   ->  the surest of each class

Self-training (Yarowsky 1995). The second model starts from the pretrained weights again, sees these
texts once, then the labelled rows. Whether that helps is measured on held-out training rows, as for
any other plan (hyperparameters.py).
"""

import numpy as np

from clozeline.train.finetuning.training_loop import Labels, Logits
from clozeline.train.labelled.calibration import softmax
from clozeline.train.labelled.rows import Rows

SUREST = 0.2


def surest(logits: Logits, labels: Labels) -> tuple[Rows, Labels]:
    """The texts whose class is surest, in their order, and these classes.

    `logits` [N, C] are of the texts, `labels` those of the rows that the model was trained on: each
    class gets its share of them in a fifth of the texts, rounded up, if it was found that often.
    """
    probabilities = softmax(logits)
    found, sure = probabilities.argmax(1), probabilities.max(1)
    shares = np.bincount(labels, minlength=logits.shape[1]) / len(labels)
    wanted = np.ceil(SUREST * len(logits) * shares).astype(int)
    order = np.argsort(-sure, kind="stable")
    rows = np.sort(np.concatenate([order[found[order] == i][:n] for i, n in enumerate(wanted)]))
    return rows, found[rows]
