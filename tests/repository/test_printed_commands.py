"""The commands of README and manual, run one after the other as a new user would.

Only sizes are smaller here: less text, a smaller vocabulary, shorter rows, fewer of them and steps,
and no search for a learning rate.
"""

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pyarrow.csv import read_csv

from clozeline.model.heads import BertForPretraining
from clozeline.pipeline.sources.sample.reviews import make_reviews
from clozeline.train.artifacts.pretrained import load_pretrained
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.inference.onnx_classifier import load_onnx_classifier
from clozeline.train.labelled.rows import Texts
from tests.support.printed_commands import PAGES, README, commands
from tests.support.small_huggingface import quiet_transformers
from tests.support.small_jobs import ROOT, articles, write_parquet

pytest.importorskip("onnxruntime")

#: Checkpoints are named by their steps, so those shrink alike: 20000 -> 20, of which 8000 -> 8.
SMALLER = (
    (r"^(pretrain .*--max-steps 10000 --out work/run)$", r"\1 --save-every 1000 --keep 10"),
    (r"size=\d+MB", "size=300KB"),
    (r"rows=\d+", "rows=60"),
    (r"--vocab-size \d+", "--vocab-size 600"),
    (r"--max-seq-length \d+", "--max-seq-length 64"),
    (r"(--max-steps|--save-every|@)( ?\d+)000\b", r"\1\2"),
    (r"--max-steps \d{3,}|--for \d+[smh]", "--max-steps 3"),
    (r"--batch-size \d+", "--batch-size 4"),
    (r"--preset bert-\S+", "--preset bert-tiny"),
    (r"--preset modern-\S+", "--preset modern-nano"),
    (r"^(pretrain (?!.*--max-steps).*)", r"\1 --max-steps 3"),
    (r"^(finetune .*)", r"\1 --epochs 1 --learning-rate 1e-3"),
)
#: What is parsed by test_docs.py alone, and why.
NOT_RUN = {
    "torchrun": "eight GPUs; test_distributed.py runs torchrun",
    "--runner=": "a cluster; test_reproducible.py runs Dask on this machine",
    "/mnt/": "a folder that machines share",
    "$CLOZELINE_DATA/dumps/": "a dump; below it is read",
    "$CLOZELINE_DATA/amazon_polarity/": "labels of CLOZELINE_DATA",
    "tutorial/own/classifier": "so small a classifier gives all documents one label",
    "inspect work/run --shards work/mixed": "a run on that mixture; test_read_steps.py has one",
    "clozeline view": "it does not end; test_view.py ends it",
}
#: Folders that pages read and do not make: those of the README under other names.
SAME_AS = {
    "tok": "tokenizer",
    **dict.fromkeys(("shards-128", "shards-512", "wiki16", "wiki64", "wiki128"), "shards"),
    **dict.fromkeys(("wiki256", "mixed", "reviews", "reviews256"), "shards"),
}
#: Pages whose run is of a model that `transformers` has.
OF_BERT = ("huggingface", "languages")


def words_of(line):
    """The words after `clozeline`, with smaller sizes and with variables filled in."""
    line = line.removeprefix("clozeline ")
    for pattern, size in SMALLER:
        line = re.sub(pattern, size, line)
    return [os.path.expandvars(word) for word in shlex.split(line)]


def is_run(line):
    return not any(part in line for part in NOT_RUN)


def run(line, folder):
    """Run a printed command; what it makes may be there from another page."""
    words = words_of(line)
    if "--out" in words:
        shutil.rmtree(folder / words[words.index("--out") + 1], ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "clozeline", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (words, done.stderr)
    assert done.stdout.strip(), words


def write_reviews(path, start):
    """A table of labelled reviews, as of one's own; its columns have their default names, too."""
    reviews = make_reviews(0, start, start + 60)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["review", "stars", "text", "label"])
        rows = zip(reviews.contents, reviews.labels.tolist(), strict=True)
        table.writerows((text, label, text, label) for text, label in rows)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder in which the README's commands have run, on text and labels of one's own."""
    folder = tmp_path_factory.mktemp("home")
    for name in ("articles/a", "reviews/a", "films/a", "wikipedia/train-0"):
        (folder / name).parent.mkdir()
        write_parquet(folder / f"{name}.parquet", articles(200))
    write_reviews(folder / "train.csv", 0)
    write_reviews(folder / "test.csv", 1000)
    (folder / "imdb").mkdir()
    for name in ("train", "test"):
        table = read_csv(folder / f"{name}.csv").select(["text", "label"])
        pq.write_table(table, folder / "imdb" / f"{name}-0.parquet")
    found = commands(README.read_text())
    assert len(found) >= 8
    for line in found:
        run(line, folder)
    return folder


@pytest.mark.slow
def test_the_readme_leads_to_a_classifier_a_page_and_an_exported_model(home):
    """From nothing but text and a table of labels."""
    assert "Confusion matrix" in (home / "work/classifier/report.html").read_text()
    text = "What a lovely lamp."
    ours, exported = (load(home / "work" / name).classify(Texts([text]))
                      for load, name in ((load_classifier, "classifier"),
                                         (load_onnx_classifier, "onnx")))  # fmt: skip
    np.testing.assert_allclose(exported, ours, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES[1:] if any(map(is_run, commands(page.read_text())))],
    ids=lambda page: page.stem,
)
def test_every_printed_command_ends_well(page, home, tmp_path, monkeypatch):
    monkeypatch.setenv("CLOZELINE_DATA", str(home))
    lines = [line for line in commands(page.read_text()) if is_run(line)]
    shutil.copytree(home, tmp_path, dirs_exist_ok=True)
    for name, same in SAME_AS.items():
        shutil.copytree(home / "work" / same, tmp_path / "work" / name)
    (tmp_path / "docs").symlink_to(ROOT / "docs")  # the documents of the tutorial
    if page.stem in OF_BERT:
        run("pretrain work/shards --preset bert-mini --out work/run", tmp_path)
    for line in lines:
        run(line, tmp_path)


# The page on a language of one's own: from real dumps to a folder that `transformers` opens


PAGE = (ROOT / "docs" / "manual" / "languages.md").read_text()
STEPS = [line for line in commands(PAGE) if "--compare" not in line]
LATGALIAN = "smallwiki-latest-pages-articles.xml.bz2"
#: The page's dump, and one of two pages in UTF-16; a text of each language.
DUMPS = {
    LATGALIAN: "Latgola irā skaista, i myusu volūda dzeivoj.",
    "bgwiki-latest-pages-articles-shortened.xml.bz2": "България е държава, на 111 000 km².",
}


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("CLOZELINE_DATA"), reason="CLOZELINE_DATA is not set")
@pytest.mark.parametrize("dump", DUMPS)
@pytest.mark.parametrize("model", ["bpe", "unigram", "wordpiece"])
def test_transformers_gives_the_same_ids_and_logits(model, dump, tmp_path):
    import transformers

    assert len(STEPS) == 4
    for line in STEPS:
        smaller = re.sub("--max-steps 2000 --batch-size 32", "--max-steps 2 --batch-size 4", line)
        smaller = smaller.replace("--model bpe", f"--model {model}").replace(LATGALIAN, dump)
        words = words_of(smaller)
        command = [sys.executable, "-m", "clozeline", *words]
        subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
        )
    folder = tmp_path / "work" / "huggingface"
    with quiet_transformers():
        theirs = transformers.AutoTokenizer.from_pretrained(folder)
        published = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ours = load_pretrained(folder)
    ids = theirs(DUMPS[dump])["input_ids"]
    [inside] = ours.tokenizer.encode_batch([DUMPS[dump]])
    assert ids == [ours.tokenizer.cls_id, *inside, ours.tokenizer.sep_id]
    assert theirs.mask_token_id == ours.tokenizer.mask_id
    mine = BertForPretraining(ours.model)
    mine.load_state_dict(ours.weights)
    rows, every = torch.tensor([ids]), torch.arange(len(ids))[None]
    with torch.no_grad():
        logits = mine.eval()(rows, torch.zeros_like(rows), None, every)[0]
        assert torch.allclose(published(rows).logits, logits[..., : len(theirs)], atol=1e-5)
