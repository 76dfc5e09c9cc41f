"""Shards in a training loop of your own: the loader gives batches, and its state resumes them.

    python examples/own_training_loop.py work/shards --steps 100

After a run with `--steps 60`, a run with `--steps 100` starts with the 61st batch.
"""

import argparse
from itertools import islice
from pathlib import Path

import torch

from clozeline import BertForPretraining, Loader, preset, read_manifest


def main(shards: Path, steps: int, batch_size: int, state_file: Path) -> None:
    """Train a tiny BERT on masked tokens alone, and keep weights and position in one file."""
    model = BertForPretraining(preset("bert-tiny", vocab_size=read_manifest(shards).vocab_size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader, step = Loader(shards, batch_size=batch_size, seed=0), 0
    if state_file.exists():
        saved = torch.load(state_file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]

    # The loader is endless, epoch after epoch; its state is that of the last batch it gave.
    for loaded in islice(loader, max(steps - step, 0)):
        batch = loaded.batch
        logits, _ = model(
            batch.input_ids, batch.token_type_ids, batch.attention_mask, batch.masked_lm_positions
        )  # [B, P, W]
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.masked_lm_labels.flatten(), reduction="none"
        )
        # Rows have different numbers of masked tokens; unused slots weigh nothing.
        loss = (losses * batch.masked_lm_weights.flatten()).sum() / loaded.num_predictions
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        print(f"step {step}: loss {loss.item():.3f}, next example {loaded.next_position}")

    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({**states, "loader": loader.state_dict(), "step": step}, state_file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shards", type=Path)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--state", dest="state_file", type=Path, default=Path("loop.pt"))
    main(**vars(parser.parse_args()))
