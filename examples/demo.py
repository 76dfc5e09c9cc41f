"""`make demo`: from text to predictions on the built-in sample, offline, with the user's commands.

    python examples/demo.py FOLDER [SEED]

Each command is printed before it runs. Finished stages are not repeated, so an interrupted demo
continues where it stopped.
"""

import json
import shlex
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from clozeline.train.monitoring.metrics import read_metrics

CORPUS = ("sample:articles?size=8MB", "sample:reviews?rows=36000")
# Disjoint from each other and from the reviews of the corpus. "even" reviews praise and blame in
# one half of the corpus's opinion words, "odd" ones in the other, which no labelled review uses.
TRAIN = "sample:reviews?rows=200&start=100000&words=even"
SAME_WORDS = "sample:reviews?rows=500&start=200000&turning=0&words=even"
OTHER_WORDS = "sample:reviews?rows=500&start=300000&turning=0&words=odd"

MASKED = (
    "It was founded in 1312 by a man who had been given the [MASK] by the Duke.",
    "My kettle's lid is elegant and [MASK].",
    "My kettle's lid is clumsy and [MASK].",
)
# Title, tab, review: the classifier was trained on two columns.
REVIEWS = (
    "After a month\tThe sound of my headset is gorgeous and stylish. My sister has the same one. "
    "For me the fit is a treat, so charming and refined.",
    "Two days\tThe lid of my kettle falls apart: clumsy and crude. I find that the handle is a "
    "mess, so tacky and awful.",
    "After two months\tMy backpack is wonderful, exceptional and excellent. I admit that the zip "
    "is rotten.",  # words of "odd" reviews
)
STARTS = {
    "pretrained": "pretrained",
    "from_scratch": "from scratch",
    "bag_of_words": "bag-of-words",
}


def main(folder: Path, seed: str = "0") -> None:
    """Run every stage in `folder` and print the results; all training uses `seed`."""
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
        "--max-steps", "700", "--batch-size", "32", "--learning-rate", "2e-3",
        "--seed", seed, "--resume",
    )  # fmt: skip
    command(
        "finetune", run, TRAIN, "--test", SAME_WORDS, "--also-test", OTHER_WORDS,
        "--text", "title", "--text-pair", "content", "--from-scratch", "--seeds", "3",
        "--batch-size", "16", "--epochs", "6", "--learning-rate", "1e-3", "--seed", seed,
        "--out", classifier, "--resume",
    )  # fmt: skip
    answers = command("predict", classifier, *REVIEWS).splitlines()
    filled = command("fill", run, *MASKED, "--top", "3").splitlines()
    print("\n".join(table(run, classifier, filled, answers)))
    print(f"\n{time.time() - started:.0f} seconds; everything is in {folder}")


def command(*words: object) -> str:
    """Run a command and return its output; progress goes to the terminal, a failure exits."""
    arguments = [str(word) for word in words]
    print(f"\n$ clozeline {shlex.join(arguments)}", flush=True)
    process = subprocess.run(
        [sys.executable, "-m", "clozeline", *arguments], stdout=subprocess.PIPE, text=True
    )
    print(process.stdout, end="", flush=True)
    if process.returncode:
        sys.exit(process.returncode)
    return process.stdout


def table(run: Path, classifier: Path, filled: list[str], answers: list[str]) -> list[str]:
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
    ]  # fmt: skip
    lines = [
        "",
        *(f"{name:<30} {value:>7}   {beside}".rstrip() for name, value, beside in rows),
        "",
        *sentiment_table(report),
        "",
    ]
    for text, guesses in zip(filled[::2], filled[1::2], strict=True):
        lines.append(f"{text}   {guesses.split('   ')[0].split(maxsplit=1)[1]}")
    lines.append("")
    for answer in answers:
        label, probability, title, review = answer.split("\t")
        lines.append(f"{label} {float(probability):.0%}   {title}: {review}")
    return lines


def sentiment_table(report: dict[str, Any]) -> list[str]:
    """Accuracy of the compared models, mean over the seeds, on both kinds of reviews.

    Only a model that has read more than the labelled reviews can know the other words.
    """
    points = {point["start"]: point for point in report["label_efficiency"]}
    columns = [(name, points[start]) for start, name in STARTS.items() if start in points]
    heads = "".join(f"{name:>15}" for name, _ in columns)
    labels = report["examples"]
    lines = [f"{f'sentiment, {labels} labels':<26}{heads}"]
    kinds = {f"words of the {labels} reviews": None, "words in none of them": OTHER_WORDS}
    for kind, source in kinds.items():
        cells = "".join(f"{_accuracy(point, source):>15}" for _, point in columns)
        lines.append(f"{kind:<26}{cells}")
    return lines


def _accuracy(point: dict[str, Any], source: str | None) -> str:
    seeds = point["also"][source] if source else point["accuracies"]
    return f"{mean(seeds):.1%}" + (f" ± {100 * stdev(seeds):.1f}" if len(seeds) > 1 else "")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:3])
