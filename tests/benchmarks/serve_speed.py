"""Requests per second and latency of `clozeline serve`, beside transformers' pipeline.

    python tests/benchmarks/serve_speed.py [REQUESTS]

The model is a bert-mini classifier with random weights; texts have 10 to 60 words. Clients are
threads of a process of their own, each with one connection and one text per request. The pipeline
gets the same texts without HTTP: one at a time, and in batches of 32. On the CPU. The last column
is the processor time of the server or of the pipeline, which other work on the machine changes
less. "HTTP alone" is the server with a classifier that does nothing: what a faster HTTP library
could save.
"""

import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clozeline.model.config import preset
from clozeline.model.heads import BertForClassification
from clozeline.train.export.export import export
from clozeline.train.finetuning.classifier import Classifier, load_classifier, save_classifier
from clozeline.train.finetuning.config import FinetuneConfig
from clozeline.train.inference.serve import classifier_server
from clozeline.train.inference.serve_limits import Limits
from clozeline.train.labelled.rows import Texts
from tests.support.http_clients import running
from tests.support.measuring import timed
from tests.support.small_classifier import report
from tests.support.small_jobs import articles, python

CLIENTS = (1, 8, 64)
CLIENT = """
import sys
from pathlib import Path
from tests.support.http_clients import latencies
url, clients, requests, texts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
texts = Path(texts).read_text().splitlines()
latencies(url, texts, clients=clients, requests=clients)
import time
start = time.perf_counter()
found = latencies(url, texts, clients=clients, requests=requests)
print(time.perf_counter() - start, *found)
"""


def write_classifier(folder: Path) -> Path:
    """A classifier over a vocabulary of the built-in articles."""
    from clozeline.pipeline.tokenization.train_tokenizer import make_tokenizer

    made = make_tokenizer(
        ["sample:articles?size=1MB"], out=folder / "tokenizer", vocab=None, vocab_size=8192,
        cased=False, language="english", text_columns=("text",), max_megabytes=1,
    )  # fmt: skip
    config = preset("bert-mini", vocab_size=made.tokenizer.vocab_size)
    classifier = Classifier(
        model=BertForClassification(config, 2, pooling="cls").eval(),
        tokenizer=made.tokenizer,
        names=("bad", "good"),
        text="text",
        text_pair=None,
        max_seq_length=128,
    )
    save_classifier(
        folder / "classifier",
        classifier,
        job={**asdict(FinetuneConfig()), "pretrained": ""},
        report=report().to_dict(),
        files={},
    )
    return folder / "classifier"


def write_texts(path: Path) -> list[str]:
    """100 texts of 10 to 60 words, a line each."""
    words = " ".join(articles(400)).split()
    texts = [" ".join(words[n * 50 : n * 50 + 10 + n % 51]) for n in range(100)]
    path.write_text("\n".join(texts) + "\n")
    return texts


class Nothing:
    """A classifier whose answers cost nothing."""

    names, text_pair = ("bad", "good"), None

    def classify(self, texts: Texts) -> np.ndarray:
        return np.full((len(texts), 2), 0.5)


def row(name: str, seconds: float, latencies: list[float], cpu_seconds: float) -> str:
    """Requests per second, median and 95th percentile of the latency, processor time."""
    ordered = sorted(latencies)
    median, late = statistics.median(ordered), ordered[int(0.95 * len(ordered))]
    rate, each = len(latencies) / seconds, cpu_seconds / len(latencies)
    return f"{name:<26}{rate:10.0f} {1000 * median:9.1f} {1000 * late:9.1f} {1000 * each:9.2f}"


def of_server(name: str, classifier: Any, texts: Path, requests: int) -> None:
    """A row for each number of clients."""
    with running(
        classifier_server(classifier, host="127.0.0.1", port=0, limits=Limits())
    ) as server:
        for clients in CLIENTS:
            work = partial(python, "-c", CLIENT, server.url, clients, requests, texts)
            printed, cpu_seconds = timed(work)  # with the warm-up, one request per client
            seconds, *latencies = map(float, printed.split())
            cpu_seconds *= requests / (requests + clients)
            print(row(f"{name}, {clients} clients", seconds, latencies, cpu_seconds))


def of_pipeline(folder: Path, texts: list[str], requests: int) -> None:
    """The same texts through transformers, without a server."""
    from transformers import pipeline

    classify = pipeline("text-classification", model=str(folder), device="cpu")
    given = [texts[n % len(texts)] for n in range(requests)]
    classify(given[:32], batch_size=32)
    times = []
    cpu = time.process_time()
    for text in given:
        start = time.perf_counter()
        classify(text, truncation=True, max_length=128)
        times.append(time.perf_counter() - start)
    print(row("pipeline, one at a time", sum(times), times, time.process_time() - cpu))
    start, cpu = time.perf_counter(), time.process_time()
    classify(given, batch_size=32, truncation=True, max_length=128)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(f"{'pipeline, batches of 32':<26}{requests / seconds:10.0f}{1000 * cpu / requests:30.2f}")


def main(requests: int = 500) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        classifier, texts = write_classifier(folder), write_texts(folder / "texts.txt")
        export(classifier, out=folder / "exported", form="transformers")
        print(f"bert-mini, {torch.get_num_threads()} thread(s), {requests} requests of one text\n")
        print(f"{'':<26}{'requests/s':>10} {'median ms':>9} {'95th ms':>9} {'CPU ms':>9}")
        of_server("serve", load_classifier(classifier), folder / "texts.txt", requests)
        of_server("HTTP alone", Nothing(), folder / "texts.txt", requests)
        of_pipeline(folder / "exported", texts, requests)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
