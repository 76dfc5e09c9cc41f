"""Shards for the trainers of others: batches as the dictionaries that models of transformers take.

    python examples/other_trainers.py work/shards --out work/bert --steps 100

Its `Trainer` saves the position in the data with each checkpoint: after a run with `--steps 60`, a
run with `--steps 100` starts with the 61st batch. `Batches` are also for Accelerate and Lightning:
give them to torchdata's `StatefulDataLoader` with `batch_size=None`, which saves their position.
"""

import argparse
import json
from contextlib import closing
from math import inf
from pathlib import Path

import torch
import transformers
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from clozeline import InputError, Loader, read_manifest

IGNORED = -100  #: the label that transformers' losses ignore
POSITION = "loader.json"  #: in the folder of a checkpoint


class Batches(IterableDataset):
    """The batches of a loader, each a dictionary of int64 tensors; it ends after `steps`, if given.

    Lightning, which fetches one batch ahead to find the end, then saves one batch ahead.
    """

    def __init__(self, loader: Loader, steps: int | None = None) -> None:
        if loader.is_unpadded or loader.shards.manifest.config.is_packed:
            raise InputError("other models do not read packed or unpadded rows; use --pairs none.")
        self.loader, self.steps = loader, steps

    def __len__(self) -> int:
        """The number of batches. Raises TypeError where there is no end."""
        if self.steps is None:
            raise TypeError("the sequence has no end; give Batches `steps`.")
        return self.steps

    def __iter__(self):
        end = inf if self.steps is None else self.steps * self.loader.batch_size
        with closing(iter(self.loader)) as batches:
            while self.loader.next_position < end:
                loaded = next(batches)
                if loaded.next_position > end:
                    return  # the end is among the batches of other workers
                yield inputs_of(loaded.batch)

    def state_dict(self) -> dict:
        """The position after the last batch handed out; several workers have none in common."""
        worker = get_worker_info()
        if worker and worker.num_workers > 1:
            raise InputError("give the DataLoader num_workers=0 or 1; the loader has threads.")
        return self.loader.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Continue with the next example."""
        self.loader.load_state_dict(state)


def inputs_of(batch) -> dict[str, torch.Tensor]:
    """[B, S] each, and next_sentence_label [B]; -100 where nothing is masked, or there is no B."""
    rows = torch.arange(len(batch))[:, None]
    labels = torch.full_like(batch.input_ids, IGNORED)
    # Unused slots point at position 0, which is never masked: [CLS] is there.
    is_masked = batch.masked_lm_weights > 0
    labels[rows, batch.masked_lm_positions] = batch.masked_lm_labels.where(is_masked, IGNORED)
    pairs = batch.next_sentence_labels
    return {
        "input_ids": batch.input_ids,
        "token_type_ids": batch.token_type_ids,
        "attention_mask": batch.attention_mask.long(),
        "labels": labels,
        "next_sentence_label": pairs.where(pairs >= 0, IGNORED),
    }


class Trainer(transformers.Trainer):
    """A trainer whose batches are whole, and whose checkpoints have their position."""

    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=None)

    def _save_checkpoint(self, *args, **options):
        super()._save_checkpoint(*args, **options)
        folder = Path(self.args.output_dir, f"checkpoint-{self.state.global_step}")
        (folder / POSITION).write_text(json.dumps(self.train_dataset.state_dict()))


def main(shards: Path, out: Path, steps: int, batch_size: int, save_steps: int) -> None:
    """Train a small BERT of transformers, from its last checkpoint if there is one."""
    vocab_size = read_manifest(shards).vocab_size
    sizes = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=vocab_size, intermediate_size=512, **sizes)
    batches = Batches(Loader(shards, batch_size=batch_size, seed=0))
    last = transformers.trainer_utils.get_last_checkpoint(out) if out.exists() else None
    if last:
        batches.load_state_dict(json.loads(Path(last, POSITION).read_text()))
    arguments = transformers.TrainingArguments(
        output_dir=str(out), max_steps=steps, save_steps=save_steps, ignore_data_skip=True,
        report_to=[],
    )  # fmt: skip
    trainer = Trainer(transformers.BertForPreTraining(config), arguments, train_dataset=batches)
    trainer.train(resume_from_checkpoint=last)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards", type=Path)
    parser.add_argument("--out", type=Path, default=Path("work/bert"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--save-steps", type=int, default=50)
    main(**vars(parser.parse_args()))
