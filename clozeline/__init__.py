"""Clozeline from Python: the functions behind the commands, under one name.

    from clozeline import Loader

    for loaded in Loader("shards", batch_size=256, seed=0):
        print(loaded.batch.input_ids.shape)

Names are imported when they are first used, so torch is needed only for what trains or predicts,
and Beam only for `build_shards`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from clozeline.model.config import BertConfig as BertConfig
    from clozeline.model.config import preset as preset
    from clozeline.model.heads import BertForPretraining as BertForPretraining
    from clozeline.pipeline.common.errors import ClozelineError as ClozelineError
    from clozeline.pipeline.common.errors import InputError as InputError
    from clozeline.pipeline.config import DataConfig as DataConfig
    from clozeline.pipeline.dataset.manifest import read_manifest as read_manifest
    from clozeline.pipeline.job.job import build_shards as build_shards
    from clozeline.pipeline.job.options import JobOptions as JobOptions
    from clozeline.pipeline.tokenization.tokenizer import Tokenizer as Tokenizer
    from clozeline.pipeline.tokenization.tokenizer import load_tokenizer as load_tokenizer
    from clozeline.pipeline.tokenization.train_tokenizer import make_tokenizer as make_tokenizer
    from clozeline.pipeline.verify.verify import verify as verify
    from clozeline.train.artifacts.pretrained import load_pretrained as load_pretrained
    from clozeline.train.artifacts.run import load_run as load_run
    from clozeline.train.config import PretrainConfig as PretrainConfig
    from clozeline.train.data.loader import Loader as Loader
    from clozeline.train.evaluation.evaluate import evaluate as evaluate
    from clozeline.train.export.export import export as export
    from clozeline.train.finetuning.classifier import load_classifier as load_classifier
    from clozeline.train.finetuning.compare import finetune as finetune
    from clozeline.train.finetuning.config import FinetuneConfig as FinetuneConfig
    from clozeline.train.inference.fill import fill as fill
    from clozeline.train.inference.predict import predict as predict
    from clozeline.train.pretraining.pretrain import pretrain as pretrain

_MODULES = {
    "BertConfig": "model.config",
    "BertForPretraining": "model.heads",
    "ClozelineError": "pipeline.common.errors",
    "DataConfig": "pipeline.config",
    "FinetuneConfig": "train.finetuning.config",
    "InputError": "pipeline.common.errors",
    "JobOptions": "pipeline.job.options",
    "Loader": "train.data.loader",
    "PretrainConfig": "train.config",
    "Tokenizer": "pipeline.tokenization.tokenizer",
    "build_shards": "pipeline.job.job",
    "evaluate": "train.evaluation.evaluate",
    "export": "train.export.export",
    "fill": "train.inference.fill",
    "finetune": "train.finetuning.compare",
    "load_classifier": "train.finetuning.classifier",
    "load_pretrained": "train.artifacts.pretrained",
    "load_run": "train.artifacts.run",
    "load_tokenizer": "pipeline.tokenization.tokenizer",
    "make_tokenizer": "pipeline.tokenization.train_tokenizer",
    "predict": "train.inference.predict",
    "preset": "model.config",
    "pretrain": "train.pretraining.pretrain",
    "read_manifest": "pipeline.dataset.manifest",
    "verify": "pipeline.verify.verify",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("clozeline.pipeline.common.errors").own_version()
    if name not in _MODULES:
        raise AttributeError(f"module 'clozeline' has no attribute {name!r}")
    return getattr(importlib.import_module(f"clozeline.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
