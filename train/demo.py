"""`make demo`: from text to predictions on the built-in sample, offline, with the user's commands.

Each command is printed before it runs. Finished stages are not repeated, so an interrupted demo
continues where it stopped.
"""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from train.monitoring.metrics import read_metrics

CORPUS = ("sample:articles?size=12MB", "sample:reviews?rows=24000")
# Disjoint from each other and from the reviews of the corpus.
TRAIN, TEST = "sample:reviews?rows=4000&start=100000", "sample:reviews?rows=2000&start=200000"

MASKED = (
    "It was founded in 1873 as a small [MASK] on the river.",
    "She was born in the town, where her [MASK] was a teacher.",
    "I sent it [MASK] and want a refund.",
)
# Title, tab, review: the classifier was trained on two columns.
REVIEWS = (
    "Two days\tI wanted to love it, but it broke after two days.",
    "After a month\tNot bad at all: the sound is clear and my daughter uses it every day.",
    "My opinion\tStay away from it. The zip jams and the seams came apart.",
)
CLASSES = {"0": "negative", "1": "positive"}


def main(folder: Path) -> None:
    """Run every stage in `folder` and print the results."""
    started = time.time()
    tokenizer, shards, run, classifier = (
        folder / name for name in ("tokenizer", "shards", "run", "classifier")
    )
    if not (tokenizer / "tokenizer.json").exists():
        command("tokenizer", *CORPUS, "--vocab-size", "4096", "--out", tokenizer)
    command(
        "shards", *CORPUS, "--tokenizer", tokenizer, "--out", shards,
        "--max-seq-length", "64", "--short-seq-prob", "0",
        "--validation", "0.05", "--num-shards", "2",
    )  # fmt: skip
    command("verify", shards)
    command("inspect", shards, "-n", "1")
    command(
        "pretrain", shards, "--out", run, "--preset", "nano", "--dropout", "0",
        "--max-steps", "1000", "--batch-size", "64", "--learning-rate", "2e-3",
        "--resume",
    )  # fmt: skip
    command("evaluate", run, shards)
    command(
        "finetune", run, TRAIN, "--test", TEST, "--text", "title", "--text-pair", "content",
        "--epochs", "3", "--learning-rate", "1e-3", "--from-scratch", "--out", classifier,
    )  # fmt: skip
    answers = command("predict", classifier, *REVIEWS).splitlines()
    filled = [command("fill", run, text, "--top", "3").splitlines() for text in MASKED]
    print("\n".join(table(run, classifier, filled, answers)))
    print(f"\n{time.time() - started:.0f} seconds; everything is in {folder}")


def command(*words: object) -> str:
    """Run a command and return its output; progress goes to the terminal, a failure exits."""
    arguments = [str(word) for word in words]
    print(f"\n$ clozeline {shlex.join(arguments)}", flush=True)
    process = subprocess.run(
        [sys.executable, "-m", "train", *arguments], stdout=subprocess.PIPE, text=True
    )
    print(process.stdout, end="", flush=True)
    if process.returncode:
        sys.exit(process.returncode)
    return process.stdout


def table(run: Path, classifier: Path, filled: list[list[str]], answers: list[str]) -> list[str]:
    """The results, each number next to its baseline."""
    first = next(line["mlm_loss"] for line in read_metrics(run) if "mlm_loss" in line)
    heldout = json.loads((run / "summary.json").read_text())["heldout"]
    report = json.loads((classifier / "report.json").read_text())
    rows = [
        ("masked-LM loss, first step", f"{first:.3f}", ""),
        ("masked-LM loss, held out", f"{heldout['mlm_loss']:.3f}",
         f"unigram {heldout['unigram_loss']:.3f}"),
        ("masked-LM accuracy, held out", f"{heldout['mlm_accuracy']:.1%}",
         f"most frequent token {heldout['most_frequent_share']:.1%}"),
        ("NSP accuracy, held out", f"{heldout['nsp_accuracy']:.1%}", "chance 50.0%"),
        ("sentiment accuracy, held out", f"{report['finetuned']['accuracy']:.1%}",
         _compared_models(report)),
    ]  # fmt: skip
    lines = [
        "",
        *(f"{name:<30} {value:>7}   {beside}".rstrip() for name, value, beside in rows),
        "",
    ]
    lines += [
        f"{text}   {guesses.split('   ')[0].split(maxsplit=1)[1]}" for text, guesses in filled
    ]
    lines.append("")
    for answer in answers:
        label, probability, title, review = answer.split("\t")
        lines.append(f"{CLASSES[label]} {float(probability):.0%}   {title}: {review}")
    return lines


def _compared_models(report: dict[str, Any]) -> str:
    names = {"from_scratch": "from scratch", "bag_of_words": "bag-of-words"}
    return ", ".join(
        f"{name} {report[key]['accuracy']:.1%}" for key, name in names.items() if report[key]
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
