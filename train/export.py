"""`clozeline export`: convert a run or a classifier to a folder that `transformers` loads.

    DIR/config.json, model.safetensors                          see model/huggingface/convert.py
    DIR/tokenizer.json, vocab.txt, tokenizer_config.json ...    the tokenizer
    DIR/README.md                                               a model card

The folder is complete or absent: it is written under a temporary name and renamed.
"""

import filecmp
import json
from dataclasses import dataclass, replace
from pathlib import Path

from model.config import BertConfig
from model.huggingface.config import CLASSIFICATION, CONFIG, model_type_of
from model.huggingface.convert import SavedModel, save_huggingface
from model.huggingface.weight_files import SAFETENSORS
from pipeline.common.errors import InputError
from pipeline.common.folder_lock import locked_folder
from pipeline.common.folder_owner import check_kind, check_replaceable
from pipeline.tokenization.tokenizer import TOKENIZER_JSON, VOCAB_TXT
from train.artifacts.checkpoint import latest_checkpoint, read_state
from train.artifacts.classifier_folder import read_metadata, read_report
from train.artifacts.huggingface import PARTS
from train.artifacts.huggingface_tokenizer import (
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    save_tokenizer,
)
from train.artifacts.partial_folder import partial_folder, replace_folder, restore_folder
from train.artifacts.pretrained import kind_of
from train.artifacts.run import SUMMARY, load_run
from train.finetuning.classifier import load_classifier
from train.model_card import classifier_card, run_card

CARD = "README.md"
# Two exports of the same model agree in these files; the card may have been edited since.
MODEL_FILES = (CONFIG, SAFETENSORS, TOKENIZER_JSON, VOCAB_TXT, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of `export`."""

    is_new: bool  # False: an identical export was already there
    architecture: str
    parameters: int
    left_out: tuple[str, ...]  # parts of the model that the architecture does not have


def export(source: Path, *, out: Path, overwrite: bool = False) -> Exported:
    """Write the latest weights of a run, or a classifier, in the layout of `transformers`.

    Raises InputError if `source` is neither, if `transformers` cannot express the model, and if
    `out` holds anything but an export.
    """
    kind = kind_of(source)
    if kind == "hugging face":
        raise InputError(f"{source} is already a Hugging Face folder; copy it.")
    out = out.resolve()  # a link is followed: renaming would replace the link, not its folder
    _check_folder(out, overwrite=overwrite)
    with locked_folder(out), partial_folder(out) as partial:
        write = _write_run if kind == "run" else _write_classifier
        saved = write(source, partial, folder=out.name)
        is_new = overwrite or not _is_same(partial, out)
        if is_new:
            _check_overwrite(out, overwrite=overwrite)
            replace_folder(partial, out)
    return Exported(
        is_new=is_new,
        architecture=saved.architecture,
        parameters=saved.parameters,
        left_out=tuple(PARTS[part] for part in saved.left_out),
    )


def _write_run(run: Path, partial: Path, *, folder: str) -> SavedModel:
    config, tokenizer, weights = load_run(run)
    longest = min(config.data.max_seq_length, config.model.max_position_embeddings)
    _check_expressible(run, config.model)
    has_segments = config.model.type_vocab_size > 0
    save_tokenizer(partial, tokenizer, max_seq_length=longest, has_segments=has_segments)
    saved = save_huggingface(
        partial, config.model, weights, pooling="mean", pad_id=tokenizer.pad_id
    )
    checkpoint = latest_checkpoint(run)
    assert checkpoint is not None  # `load_run` has just read its weights
    state = read_state(checkpoint)
    card = run_card(config, state, _heldout(run, state.step), folder=folder)
    (partial / CARD).write_text(card, "utf-8")
    return saved


def _write_classifier(source: Path, partial: Path, *, folder: str) -> SavedModel:
    metadata, report = read_metadata(source), read_report(source)
    classifier = load_classifier(source)
    config, tokenizer = classifier.model.config, classifier.tokenizer
    has_segments = config.type_vocab_size > 0
    _check_expressible(source, replace(config, pooler=has_segments))
    if has_segments and classifier.model.pooling != "cls":
        raise InputError(
            f"{source} cannot be exported: it pools by mean, but {CLASSIFICATION[0]} pools by "
            "[CLS] only; fine-tune with --pooling cls."
        )
    save_tokenizer(
        partial, tokenizer, max_seq_length=classifier.max_seq_length, has_segments=has_segments
    )
    weights = classifier.model.state_dict()
    for name in ("classifier.weight", "classifier.bias"):  # transformers has no temperature
        weights[name] = weights[name] / classifier.temperature
    saved = save_huggingface(
        partial,
        config,
        weights,
        labels=classifier.names,
        pooling=classifier.model.pooling,
        pad_id=tokenizer.pad_id,
    )
    (partial / CARD).write_text(classifier_card(metadata, report, folder=folder), "utf-8")
    return saved


def _check_expressible(source: Path, config: BertConfig) -> None:
    try:
        model_type_of(config)
    except ValueError as error:
        raise InputError(f"{source} cannot be exported: {error}") from error


def _heldout(run: Path, step: int) -> dict[str, float] | None:
    """The run's held-out evaluation at this step, if there is one."""
    try:
        summary = json.loads((run / SUMMARY).read_bytes())
    except FileNotFoundError:
        return None  # the run has not finished
    except ValueError as error:
        raise InputError(f"{run / SUMMARY} cannot be read ({error}).") from error
    return summary["heldout"] if summary["step"] == step else None


def _check_folder(out: Path, *, overwrite: bool) -> None:
    """Raise InputError if writing `out` would delete files that are not part of an export."""
    restore_folder(out)
    is_export = (out / CONFIG).exists()
    check_kind(out, "an export", is_own=is_export)
    if overwrite or not is_export:
        check_replaceable(out, "an export", own=(*MODEL_FILES, CARD))


def _is_same(partial: Path, out: Path) -> bool:
    return all(
        (out / name).is_file() and filecmp.cmp(partial / name, out / name, shallow=False)
        for name in MODEL_FILES
    )


def _check_overwrite(out: Path, *, overwrite: bool) -> None:
    if (out / CONFIG).exists() and not overwrite:
        raise InputError(
            f"{out} holds a different export; choose another --out, or add --overwrite."
        )
