"""A folder of your own documents, and a few labelled ones, to a classifier.

    python examples/documents_to_classifier.py documents/ labelled.csv work --hours 1

`documents/*.txt` have a blank line between documents; `labelled.csv` has the columns text and
label. Each step is a command. Finished steps are not repeated, so the script can be run again.
"""

import argparse
import subprocess
import sys
from pathlib import Path


def clozeline(*words: object) -> None:
    """Run a command; stop where it fails."""
    subprocess.run([sys.executable, "-m", "clozeline", *map(str, words)], check=True)


def main(
    documents: Path, labelled: Path, work: Path, hours: float, vocab_size: int, preset: str
) -> None:
    """Vocabulary, shards, pretraining, fine-tuning."""
    texts, tokenizer, shards, run = (
        documents / "*.txt", work / "tokenizer", work / "shards", work / "run"
    )  # fmt: skip
    if not tokenizer.exists():
        clozeline("tokenizer", texts, "--vocab-size", vocab_size, "--out", tokenizer)
    # Without next sentence pairs, which gain a classifier nothing.
    how = ("--pairs", "none", "--validation", 0.05)
    clozeline("shards", texts, "--tokenizer", tokenizer, "--out", shards, *how)
    how = ("--preset", preset, "--for", f"{round(hours * 3600)}s")
    clozeline("pretrain", shards, "--out", run, *how, "--resume")
    # Compare with the same model from random weights, to see what the pretraining was worth.
    compared = ("--from-scratch", "--resume")
    clozeline("finetune", run, labelled, "--out", work / "classifier", *compared)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("documents", type=Path)
    parser.add_argument("labelled", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--preset", default="nano")
    main(**vars(parser.parse_args()))
