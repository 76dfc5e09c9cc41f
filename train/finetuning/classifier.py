"""A fine-tuned classifier: a folder that needs nothing else, and what one does with it.

    DIR/classifier.json     classes, columns, model config, and all that it was made of
    DIR/model.safetensors   weights by name
    DIR/tokenizer/          a copy
    DIR/report.json         how right it is on rows it has not seen, and what stands beside it

The folder is whole or absent: it is written under another name and renamed.
"""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from model.config import BertConfig
from model.heads import BertForClassification
from pipeline.common.errors import InputError
from pipeline.tokenization.tokenizer import Tokenizer, load_tokenizer
from train.artifacts.partial_folder import partial_folder
from train.finetuning.encoding import Encoded, Encoder, reading_batches
from train.finetuning.labelled import Texts

CLASSIFIER, MODEL, REPORT, TOKENIZER = (
    "classifier.json",
    "model.safetensors",
    "report.json",
    "tokenizer",
)
READING_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A model, and all that turns text into what it reads and its answers into names."""

    model: BertForClassification
    tokenizer: Tokenizer
    names: tuple[str, ...]  # of the C classes
    text: str  # the columns it was trained on
    text_pair: str | None
    max_seq_length: int
    encoder: Encoder = field(init=False)

    def __post_init__(self) -> None:
        encoder = Encoder(self.tokenizer, max_seq_length=self.max_seq_length)
        object.__setattr__(self, "encoder", encoder)

    def classify(self, texts: Texts) -> NDArray[np.float32]:
        """The probability of each class, [N, C]; one text or many, on the model's device."""
        return class_probabilities(self.model, self.encoder.encode(texts))


@torch.no_grad()
def class_probabilities(
    model: BertForClassification, rows: Encoded, *, batch_size: int = READING_BATCH
) -> NDArray[np.float32]:
    """The probability of each class for each row, [N, C], in the order of the rows."""
    device = model.classifier.weight.device
    was_training = model.training
    model.eval()
    found = np.empty((len(rows), model.classifier.out_features), dtype=np.float32)
    for batch in reading_batches(rows.input_ids.lengths, batch_size=batch_size):
        logits = model(*(tensor.to(device) for tensor in rows.inputs(batch)))
        found[batch] = logits.float().softmax(-1).cpu().numpy()
    model.train(was_training)
    return found


def save_classifier(
    folder: Path, classifier: Classifier, *, job: dict[str, Any], report: dict[str, Any]
) -> None:
    """Write the folder, in place of one that is there. `job` is what the classifier was made of."""
    facts = {
        "model": classifier.model.config.to_dict(),
        "names": list(classifier.names),
        "text": classifier.text,
        "text_pair": classifier.text_pair,
        "max_seq_length": classifier.max_seq_length,
        "tokenizer_digest": classifier.tokenizer.digest,
        "job": job,
    }
    weights = {k: v.detach().contiguous() for k, v in classifier.model.state_dict().items()}
    with partial_folder(folder) as partial:
        classifier.tokenizer.save(partial / TOKENIZER)
        save_file(weights, partial / MODEL)
        _write_json(partial / REPORT, report)
        _write_json(partial / CLASSIFIER, facts)
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)


def load_classifier(folder: Path, *, device: torch.device | str = "cpu") -> Classifier:
    """The classifier of a folder, ready to answer.

    Raises InputError where the folder is none of `clozeline finetune`, or where a part of it is
    missing, damaged, or not the one that was trained.
    """
    facts = read_facts(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.digest != facts["tokenizer_digest"]:
        raise InputError(
            f"{folder / TOKENIZER} is another tokenizer ({tokenizer.digest[:12]}) than the model "
            f"was trained with ({facts['tokenizer_digest'][:12]}); put the right one back."
        )
    try:
        model = BertForClassification(BertConfig.from_dict(facts["model"]), len(facts["names"]))
        model.load_state_dict(load_file(folder / MODEL))
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise InputError(
            f"{folder / MODEL} cannot be read ({_first_line(error)}); make it again with "
            "`clozeline finetune --overwrite`."
        ) from error
    return Classifier(
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        names=tuple(facts["names"]),
        text=facts["text"],
        text_pair=facts["text_pair"],
        max_seq_length=facts["max_seq_length"],
    )


def read_facts(folder: Path) -> dict[str, Any]:
    """What classifier.json says. Raises InputError where it is missing or damaged."""
    return _read_json(folder, CLASSIFIER, ("model", "names", "max_seq_length", "job"))


def read_report(folder: Path) -> dict[str, Any]:
    """What report.json says. Raises InputError where it is missing or damaged."""
    return _read_json(folder, REPORT, ("finetuned",))


def is_classifier(folder: Path) -> bool:
    """Whether the folder is a finished classifier's; it is never half of one."""
    return (folder / CLASSIFIER).exists()


def check_room(folder: Path) -> None:
    """Raises InputError where the folder cannot be written, or holds what is not ours."""
    is_strange = folder.exists() and not is_classifier(folder)
    if is_strange and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists and is no classifier's folder; give another --out.")
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(f"nothing can be written into {above}; give another --out.")


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def _read_json(folder: Path, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    try:
        values = json.loads((folder / name).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(
            f"{folder} is no classifier (no {name} in it); `clozeline finetune RUN TRAIN --out "
            f"{folder}` makes one."
        ) from error
    except ValueError as error:
        raise InputError(f"{folder / name} cannot be read ({error}).") from error
    if missing := [key for key in keys if key not in values]:
        raise InputError(f"{folder / name} lacks {', '.join(missing)}; make the folder again.")
    return values


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
