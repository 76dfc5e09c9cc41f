"""`clozeline export`: convert a run or a classifier to a folder for other libraries.

    transformers   config.json, model.safetensors       see model/huggingface/convert.py
                   and for other models their code      see custom_model.py
    pretraining    the same, with next-sentence head and pooler: BertForPreTraining
    onnx           model.onnx, onnx.json                see onnx_graphs.py
    all            the files of a tokenizer folder, without Punkt; SHA256SUMS

The first two get a model card, README.md. The folder is complete or absent: it is written under a
temporary name and renamed.
"""

import filecmp
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from clozeline.model.config import Pooling
from clozeline.model.heads import BertForClassification, BertForPretraining, count_parameters
from clozeline.model.huggingface.config import CONFIG, model_type_of
from clozeline.model.huggingface.convert import save_huggingface
from clozeline.model.huggingface.weight_files import SAFETENSORS
from clozeline.pipeline.common.config_checks import check_word, takes_keywords
from clozeline.pipeline.common.errors import InputError
from clozeline.pipeline.common.folder_lock import locked_folder
from clozeline.pipeline.common.folders import LOCK, check_kind, check_replaceable, kind_of
from clozeline.pipeline.common.json_files import SUMS, json_values, write_json, write_sums
from clozeline.pipeline.common.paths import GivenPath
from clozeline.pipeline.config import PairScheme
from clozeline.pipeline.tokenization.tokenizer import PUNKT_JSON, TOKENIZER_FILES, Tokenizer
from clozeline.pipeline.tokenization.vocabulary import TokenizerSpec
from clozeline.train.artifacts.classifier_folder import read_metadata, read_report
from clozeline.train.artifacts.huggingface import PARTS
from clozeline.train.artifacts.partial_folder import partial_folder, replace_folder, restore_folder
from clozeline.train.artifacts.pretrained import kind_of_model
from clozeline.train.artifacts.run import SUMMARY, read_run_and_weights
from clozeline.train.config import Truncate
from clozeline.train.export.custom_model import CODE, add_prompt, save_custom_model
from clozeline.train.export.model_card import classifier_card, run_card
from clozeline.train.export.onnx_graphs import (
    ENCODER,
    METADATA,
    MODEL,
    write_classifier_graph,
    write_run_graphs,
)
from clozeline.train.finetuning.classifier import Classifier, read_classifier
from clozeline.train.store.local_folder import local_folder

Format = Literal["transformers", "pretraining", "onnx"]

CARD = "README.md"
FILES = (
    *(CONFIG, CODE, METADATA, SAFETENSORS, ENCODER, MODEL, CARD),
    *(name for name in TOKENIZER_FILES if name != PUNKT_JSON),
)


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Result of `export`."""

    is_new: bool  # False: an identical export was already there
    description: str  # architecture and size; for ONNX also the comparison with torch


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A run or a classifier, read, with the card of its folder."""

    model: BertForPretraining | BertForClassification
    tokenizer: Tokenizer
    max_seq_length: int
    pooling: Pooling
    truncate: Truncate = "end"
    classifier: Classifier | None = None  # None: a run
    pairs: PairScheme | None = None  # of a run
    card: str

    @property
    def has_next_sentence(self) -> bool:
        """Whether next-sentence head and pooler are trained, and `transformers` has them."""
        has_types = self.model.config.type_vocab_size > 0  # ModernBERT has neither
        return has_types and self.pairs not in (None, "none", "packed") and _is_plain(self)


@takes_keywords
def export(
    source: GivenPath,
    *,
    out: GivenPath,
    form: Format = "transformers",
    overwrite: bool = False,
) -> Exported:
    """Write the latest weights of a run, or a classifier, in the layout of another library.

        >>> export("work/run", out="work/huggingface").is_new
        True

    A run becomes a masked LM; with `form="pretraining"` a `BertForPreTraining`. Raises InputError
    if `source` is neither, if the library cannot express the model, and if `out`
    holds anything but an export.
    """
    with local_folder(source) as source, local_folder(out, writes=True) as out:
        # Follow a link: renaming would replace the link, not its folder.
        return _export(source, out.resolve(), form, overwrite=overwrite)


def _export(source: Path, out: Path, form: Format, *, overwrite: bool) -> Exported:
    check_word("form", form, get_args(Format))
    kind = kind_of_model(source, accepted=("run", "classifier"))
    _check_folder(out, overwrite=overwrite)
    read = _read_run if kind == "run" else _read_classifier
    loaded = read(source, folder=out.name)
    if form != "onnx":
        _check_expressible(source, loaded, form)
    with locked_folder(out), partial_folder(out) as partial:
        Tokenizer(loaded.tokenizer.tokens, loaded.tokenizer.normalization).save(  # without Punkt
            partial,
            max_seq_length=loaded.max_seq_length,
            has_segments=loaded.model.config.type_vocab_size > 0,
            cuts_start=loaded.truncate == "start",
        )
        if form == "onnx":
            description = _write_onnx(loaded, partial)
        else:
            description = _write_transformers(loaded, partial, form)
        apart = (CARD, SUMS)  # the sums of the tokenizer are replaced by those of all files
        write_sums(partial, [path.name for path in partial.iterdir() if path.name not in apart])
        is_new = overwrite or not _is_same(partial, out)
        if is_new and _is_export(out) and not overwrite:
            raise InputError(
                f"{out} holds a different export; choose another --out, or add --overwrite."
            )
        if is_new:
            replace_folder(partial, out)
    return Exported(is_new=is_new, description=description)


def _read_run(run: Path, *, folder: str) -> _Source:
    config, tokenizer, state, weights = read_run_and_weights(run)
    model = BertForPretraining(config.model).eval()
    model.load_state_dict(weights)
    heldout = None
    if (run / SUMMARY).exists():  # the run has finished
        with json_values(run / SUMMARY, "delete it", seal=True) as summary:
            heldout = summary["heldout"] if summary["step"] == state.step else None
    return _Source(
        model=model,
        tokenizer=tokenizer,
        max_seq_length=min(config.data.max_seq_length, config.model.max_position_embeddings),
        pooling="mean",
        pairs=config.data.pairs,
        card=run_card(config, state, heldout, folder=folder, mask=tokenizer.mask_token),
    )


def _read_classifier(source: Path, *, folder: str) -> _Source:
    metadata, report = read_metadata(source), read_report(source)
    classifier = read_classifier(source)
    return _Source(
        model=classifier.model,
        tokenizer=classifier.encoder.tokenizer,
        max_seq_length=classifier.encoder.max_seq_length,
        pooling=classifier.model.pooling,
        truncate=classifier.encoder.truncate,
        classifier=classifier,
        card=classifier_card(metadata, report, folder=folder),
    )


def _check_expressible(source: Path, loaded: _Source, form: Format) -> None:
    """Raises InputError where `transformers` has no such head, or no tokenizer like this."""
    if form == "pretraining" and not loaded.has_next_sentence:
        raise InputError(
            f"{source} has no trained next-sentence head of bert-tiny to bert-large to export; "
            "leave --format pretraining out."
        )
    prompt = loaded.classifier and loaded.classifier.encoder.prompt
    if prompt and isinstance(loaded.tokenizer.normalization, TokenizerSpec):
        raise InputError(
            f"{source} reads a prompt before each text, which only a WordPiece tokenizer of "
            "transformers can add; export it with --format onnx."
        )
    if loaded.truncate == "middle":
        raise InputError(
            f"{source} reads long texts without their middle, as no tokenizer of transformers "
            "does; fine-tune with --truncate start, or export it with --format onnx."
        )


def _is_plain(loaded: _Source) -> bool:
    """Whether `transformers` has the model: BERT classifies by [CLS], ModernBERT also by mean."""
    config = loaded.model.config
    if loaded.classifier and (
        loaded.pooling == "mask" or (loaded.pooling == "mean" and config.type_vocab_size)
    ):
        return False
    try:
        model_type_of(config)
    except ValueError:
        return False
    return True


def _write_transformers(loaded: _Source, partial: Path, form: Format) -> str:
    weights, classifier = dict(loaded.model.state_dict()), loaded.classifier
    values: dict[str, Any] = {
        "labels": classifier.names if classifier else (),
        "pooling": loaded.pooling,
        "pad_id": loaded.tokenizer.pad_id,
    }
    card = loaded.card
    if _is_plain(loaded):
        if form != "pretraining" and not classifier and loaded.model.config.type_vocab_size:
            values["architecture"] = "BertForMaskedLM"
        saved = save_huggingface(partial, loaded.model.config, weights, **values)
    else:
        # The command of the card runs the code of the folder.
        card = re.sub(r'(model="[^"]*")', r"\1, trust_remote_code=True", card, count=1)
        mask_position = classifier.model.mask_position if classifier else 0
        saved = save_custom_model(
            partial, loaded.model.config, weights, mask_position=mask_position, **values
        )
        if classifier and classifier.encoder.prompt:
            add_prompt(partial, classifier.encoder.prompt_ids, loaded.tokenizer)
    (partial / CARD).write_text(card, "utf-8")
    parts = [PARTS[part] for part in saved.left_out]
    without = f" without the {' and the '.join(parts)}" if parts else ""
    if parts and loaded.has_next_sentence:
        without += " (--format pretraining keeps them)"
    code = "" if _is_plain(loaded) else f", with its code in {CODE} (trust_remote_code=True)"
    return f"{saved.architecture} of {saved.parameters:,} parameters{without}{code}"


def _write_onnx(loaded: _Source, partial: Path) -> str:
    values: dict[str, Any] = {"max_seq_length": loaded.max_seq_length}
    if loaded.truncate != "end":
        values["truncate"] = loaded.truncate
    if classifier := loaded.classifier:
        difference = write_classifier_graph(partial, classifier.model)
        values |= {"names": list(classifier.names), "pooling": loaded.pooling}
        values |= {"text": classifier.text, "text_pair": classifier.text_pair}
        if (encoder := classifier.encoder).prompt:
            values |= {"prompt": encoder.prompt, "prompt_ids": encoder.prompt_ids}
    else:
        assert isinstance(loaded.model, BertForPretraining)
        difference = write_run_graphs(partial, loaded.model)
    write_json(partial / METADATA, values)
    parameters = count_parameters(loaded.model)
    return f"ONNX graph of {parameters:,} parameters, within {difference:.0e} of torch"


def _check_folder(out: Path, *, overwrite: bool) -> None:
    """Raise InputError if writing `out` would delete files that are not part of an export."""
    restore_folder(out)
    check_kind(out, "an export", is_own=_is_export(out))
    if overwrite or not _is_export(out):
        check_replaceable(out, "an export", own=FILES)


def _is_export(out: Path) -> bool:
    """A model that somebody else wrote has the same files, but not the sums of all of them."""
    kind, sums = kind_of(out), out / SUMS
    has_sums = sums.is_file() and f"  {CONFIG}\n".encode() in sums.read_bytes()
    return kind == "ONNX" or (kind == "Hugging Face" and has_sums)


def _is_same(partial: Path, out: Path) -> bool:
    """Whether two exports are of the same model; the card may have been edited since."""
    apart = {Path(CARD), Path(LOCK), Path(SUMS)}  # the sums count the card in
    new, old = (
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} - apart
        for folder in (partial, out)
    )
    return new == old and filecmp.cmpfiles(partial, out, new, shallow=False)[1:] == ([], [])
