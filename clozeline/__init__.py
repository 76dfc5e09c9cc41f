"""Clozeline from Python: the functions behind the commands, under one name.

    from clozeline import Loader

    for loaded in Loader("shards", batch_size=256, seed=0):
        print(loaded.batch.input_ids.shape)

Names are imported when they are first used, so torch is needed only for what trains or predicts,
and Beam only for `build_shards`.
"""

import importlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names, for editors and type checkers
    from model.config import BertConfig as BertConfig
    from model.config import preset as preset
    from pipeline.config import DataConfig as DataConfig
    from pipeline.dataset.manifest import read_manifest as read_manifest
    from pipeline.job.job import JobOptions as JobOptions
    from pipeline.job.job import build_shards as build_shards
    from pipeline.tokenization.tokenizer import load_tokenizer as load_tokenizer
    from pipeline.tokenization.train_tokenizer import make_tokenizer as make_tokenizer
    from pipeline.verify.verify import verify as verify
    from train.artifacts.pretrained import load_pretrained as load_pretrained
    from train.artifacts.run import load_run as load_run
    from train.config import PretrainConfig as PretrainConfig
    from train.data.dict_loader import DictLoader as DictLoader
    from train.data.loader import Loader as Loader
    from train.export import export as export
    from train.fill import fill as fill
    from train.finetuning.classifier import load_classifier as load_classifier
    from train.finetuning.config import FinetuneConfig as FinetuneConfig
    from train.finetuning.finetune import finetune as finetune
    from train.predict import predict as predict
    from train.pretraining.pretrain import pretrain as pretrain

_MODULES = {
    "BertConfig": "model.config",
    "DataConfig": "pipeline.config",
    "DictLoader": "train.data.dict_loader",
    "FinetuneConfig": "train.finetuning.config",
    "JobOptions": "pipeline.job.job",
    "Loader": "train.data.loader",
    "PretrainConfig": "train.config",
    "build_shards": "pipeline.job.job",
    "export": "train.export",
    "fill": "train.fill",
    "finetune": "train.finetuning.finetune",
    "load_classifier": "train.finetuning.classifier",
    "load_pretrained": "train.artifacts.pretrained",
    "load_run": "train.artifacts.run",
    "load_tokenizer": "pipeline.tokenization.tokenizer",
    "make_tokenizer": "pipeline.tokenization.train_tokenizer",
    "predict": "train.predict",
    "preset": "model.config",
    "pretrain": "train.pretraining.pretrain",
    "read_manifest": "pipeline.dataset.manifest",
    "verify": "pipeline.verify.verify",
}

#: The packages installed beside this one; their names are common, so others may shadow them.
NEIGHBOURS = ("pipeline", "model", "train")
ROOT = Path(__file__).resolve().parent.parent


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'clozeline' has no attribute {name!r}")
    check_neighbours()
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])


def check_neighbours() -> None:
    """Raises ImportError if `pipeline`, `model` or `train` is not the package installed with us."""
    for name in NEIGHBOURS:
        spec = find_spec(name)
        found = spec.origin if spec else None
        if found is None or Path(found).resolve().parent != ROOT / name:
            raise ImportError(
                f"Python finds another {name!r} than Clozeline's: {found or 'nothing'} instead of "
                f"{ROOT / name}. Rename it, or take its folder off the import path (sys.path)."
            )
