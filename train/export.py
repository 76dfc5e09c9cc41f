"""`clozeline export`: a run or a classifier to a folder that `transformers` reads.

    DIR/config.json, model.safetensors                          see model/huggingface/convert.py
    DIR/tokenizer.json, vocab.txt, tokenizer_config.json ...    its tokenizer
    DIR/README.md                                               a model card

The folder is whole or absent: it is written under another name and renamed.
"""

import filecmp
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from model.config import BertConfig
from model.heads import count_parameters
from model.huggingface.config import CLASSIFICATION, CONFIG, PRETRAINING, check_expressible
from model.huggingface.convert import save_huggingface
from model.huggingface.weight_files import SAFETENSORS
from pipeline.common.errors import InputError
from pipeline.tokenization.tokenizer import TOKENIZER_JSON, VOCAB_TXT
from train.artifacts.checkpoint import latest_checkpoint, read_state
from train.artifacts.classifier_folder import read_metadata, read_report
from train.artifacts.huggingface_tokenizer import (
    SPECIAL_TOKENS_MAP,
    TOKENIZER_CONFIG,
    save_tokenizer,
)
from train.artifacts.partial_folder import partial_folder
from train.artifacts.pretrained import kind_of
from train.artifacts.run import SUMMARY, load_run
from train.finetuning.classifier import load_classifier
from train.model_card import classifier_card, run_card

CARD = "README.md"
# What another export of the same is known by; the card may have been edited since.
FACTS = (CONFIG, SAFETENSORS, TOKENIZER_JSON, VOCAB_TXT, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """How a call of `export` ended."""

    is_new: bool  # False: the very same was there
    architecture: str
    parameters: int


def export(source: Path, *, out: Path, overwrite: bool = False) -> Exported:
    """Write the newest weights of a run, or a classifier, as `transformers` would.

    Raises InputError for a folder that is neither, a model that `transformers` cannot express, and
    an `out` that holds anything else.
    """
    kind = kind_of(source)
    if kind == "hugging face":
        raise InputError(f"{source} is a Hugging Face folder already; copy it.")
    _check_room(out)
    with partial_folder(out) as partial:
        write = _write_run if kind == "run" else _write_classifier
        architecture, parameters = write(source, partial, folder=out.name)
        is_new = overwrite or not _is_same(partial, out)
        if is_new:
            _replace(partial, out, overwrite=overwrite)
    return Exported(is_new=is_new, architecture=architecture, parameters=parameters)


def _write_run(run: Path, partial: Path, *, folder: str) -> tuple[str, int]:
    config, tokenizer, weights = load_run(run)
    longest = min(config.data.max_seq_length, config.model.max_position_embeddings)
    _check(run, config.model)
    save_tokenizer(partial, tokenizer, max_seq_length=longest)
    save_huggingface(partial, config.model, weights, pad_id=tokenizer.pad_id)
    checkpoint = latest_checkpoint(run)
    assert checkpoint is not None  # its weights have just been read
    state = read_state(checkpoint)
    card = run_card(config, state, _heldout(run, state.step), folder=folder)
    (partial / CARD).write_text(card, "utf-8")
    return PRETRAINING, count_parameters(config.model)


def _write_classifier(classifier: Path, partial: Path, *, folder: str) -> tuple[str, int]:
    facts, report = read_metadata(classifier), read_report(classifier)
    found = load_classifier(classifier)
    config, tokenizer = found.model.config, found.tokenizer
    _check(classifier, config)
    save_tokenizer(partial, tokenizer, max_seq_length=found.max_seq_length)
    save_huggingface(
        partial,
        config,
        found.model.state_dict(),
        architecture=CLASSIFICATION,
        labels=found.names,
        pad_id=tokenizer.pad_id,
    )
    (partial / CARD).write_text(classifier_card(facts, report, folder=folder), "utf-8")
    return CLASSIFICATION, count_parameters(found.model)


def _check(source: Path, config: BertConfig) -> None:
    try:
        check_expressible(config)
    except ValueError as error:
        raise InputError(f"{source} cannot be exported: {error}") from error


def _heldout(run: Path, step: int) -> dict[str, float] | None:
    """What the run reached at this step, if it was measured."""
    try:
        summary = json.loads((run / SUMMARY).read_bytes())
    except FileNotFoundError:
        return None  # it is not at its end
    except ValueError as error:
        raise InputError(f"{run / SUMMARY} cannot be read ({error}).") from error
    return summary["heldout"] if summary["step"] == step else None


def _check_room(out: Path) -> None:
    """Raises InputError where writing the folder would remove what is not ours."""
    if not out.exists():
        return
    names = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    strange = sorted(names - {*FACTS, CARD})
    if strange or (names and CONFIG not in names):
        raise InputError(
            f"{out} exists and is no export ({', '.join((strange or sorted(names))[:3])} in it); "
            "give another --out."
        )


def _is_same(partial: Path, out: Path) -> bool:
    return all(
        (out / name).is_file() and filecmp.cmp(partial / name, out / name, shallow=False)
        for name in FACTS
    )


def _replace(partial: Path, out: Path, *, overwrite: bool) -> None:
    if out.exists():
        if any(out.iterdir()) and not overwrite:
            raise InputError(f"{out} holds another export; give another --out, or --overwrite.")
        shutil.rmtree(out)
    partial.rename(out)
