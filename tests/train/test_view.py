"""`clozeline view`: the pages of runs and classifiers, the exported page, and the command."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from itertools import chain, combinations
from operator import eq
from urllib.request import ProxyHandler, build_opener

import click
import numpy as np
import pytest

from clozeline.pipeline.commandline.given_paths import note_given
from clozeline.pipeline.common.json_files import sealed
from clozeline.pipeline.common.paths import path_of
from clozeline.pipeline.dataset.manifest import read_manifest
from clozeline.pipeline.dataset.shards import read_shard
from clozeline.train.artifacts.run import LEARNING
from clozeline.train.data.loader import evaluation_batches
from clozeline.train.evaluation.evaluate import evaluate
from clozeline.train.finetuning.classifier import load_classifier
from clozeline.train.inference.fill import fill
from clozeline.train.inference.word_effects import WORDS, word_effects
from clozeline.train.labelled.rows import Texts
from clozeline.train.monitoring.learning import ROWS
from clozeline.train.monitoring.metrics import METRICS, read_metrics
from clozeline.train.monitoring.run_history import RunHistory
from clozeline.train.view.run_model import RunModel
from clozeline.train.view.view import make_site
from tests.support.command import invoke, refused
from tests.support.http_clients import post, request, running
from tests.support.small import small_tokenizer
from tests.support.small_classifier import write_small_classifier
from tests.support.small_data import SMALL, write_data_set
from tests.support.small_jobs import ROOT

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")
pytest_plugins = ["tests.support.view_fixtures"]


def embedded(html):
    """The values that a page hands to its script."""
    (text,) = re.findall(r'<script type="application/json" data-values>(.*?)</script>', html, re.S)
    return json.loads(text)


# --- what there is


@pytest.mark.parametrize(
    "path", ["dataset", "examples", "learning", "curves", "classifier", "predictions", "try"]
)
def test_each_page_names_itself_and_loads_only_from_the_server(server, path):
    html = request(server, f"/{path}").text
    assert re.search(rf'<a href="/{path}" aria-current="page">', html)
    assert html.count("<h1>") == 1
    loaded = re.findall(r'(?:src|href)="([^"#]*)"', html)
    assert all(address == "data:," or address.startswith("/") for address in loaded)
    assert not re.search(r"\son\w+=|javascript:|<script>", html)  # no script of the page itself


def test_scripts_and_styles_are_files_of_the_package(server):
    script, style = request(server, "/script.js"), request(server, "/style.css")
    assert script.headers["Content-Type"] == "text/javascript; charset=utf-8"
    assert style.headers["Content-Type"] == "text/css; charset=utf-8"
    assert "startLearning" in script.text
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script.text)
    assert "https://" not in script.text + style.text


def test_pages_are_those_that_the_folders_have(small_folder, run, classifier):
    def names(*folders):
        return [tab.name for tab in make_site(folders).tabs]

    assert names(small_folder) == ["Data set", "Examples"]
    assert names(run) == ["Curves", "Learning", "Try it"]
    assert names(classifier) == ["Classifier", "Predictions", "Try it"]
    assert names(classifier, run, small_folder) == [
        *("Data set", "Examples", "Curves", "Learning", "Classifier", "Predictions", "Try it")
    ]


# --- learning


def test_the_page_has_each_evaluation_and_draws_the_last_one(server, run):
    html = request(server, "/learning").text
    values = embedded(html)
    assert values == request(server, "/learning.json").json
    assert [found["step"] for found in values["evaluations"]] == [4, 8, 12]
    lines = [json.loads(line) for line in (run / LEARNING).read_text().splitlines()]
    tokens = small_tokenizer().tokens
    answers = [[tokens[i] for i in row["answers"]] for row in lines[0]["rows"]]
    assert values["answers"] == answers
    for line, found in zip(lines[1:], values["evaluations"], strict=True):
        assert found["guesses"] == [[tokens[i] for i in row] for row in line["guesses"]]
        assert found["of_answers"] == line["of_answers"]
    assert len(answers) == min(ROWS, 23)
    assert html.count("data-row") == len(answers)
    last = values["evaluations"][-1]["guesses"]
    right = sum(map(eq, chain(*last), chain(*answers)))
    chips = re.findall(r'class="token[^"]* (right|wrong)"', html)
    legend = 2
    assert len(chips) == sum(map(len, answers)) + legend
    assert chips.count("right") == right + 1
    assert html.count(" ✓</small>") == right + 1  # not by colour alone


def test_only_new_evaluations_are_sent(server):
    steps = [e["step"] for e in request(server, "/learning.json?after=4").json["evaluations"]]
    assert steps == [8, 12]
    for wrong in ("?run=1", f"?run={'9' * 5000}", ".json?after=x"):
        assert request(server, f"/learning{wrong}").status == 400
    assert request(server, "/learning?after=999999").status == 200  # the page shows all


def test_runs_of_a_store_are_named_as_they_were_given(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    with click.Context(click.Command("view")):
        note_given(copy, "s3://bucket/run")
        site = make_site([run, copy])
    with running(site.server()) as server:  # whose threads have no context of a command
        for path in ("learning", "try"):
            html = request(server, f"/{path}").text
            assert "s3://bucket/run</option>" in html
            assert str(copy) not in html


def test_a_run_without_evaluations_has_a_page(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / LEARNING).unlink()
    with running(make_site([copy]).server()) as server:
        page = request(server, "/learning")
        assert "No evaluation yet" in page.text
        shutil.copy(run / LEARNING, copy)
        assert len(request(server, "/learning.json").json["evaluations"]) == 3


def test_a_diverged_run_has_a_page_that_a_browser_can_read(run, tmp_path):
    """JSON has no NaN: `JSON.parse` would fail, and with it the whole script of the page."""
    copy = shutil.copytree(run, tmp_path / "run")
    text = (copy / LEARNING).read_text()
    (copy / LEARNING).write_text(re.sub(r"\d\.\d+", "NaN", text))
    with running(make_site([copy]).server()) as server:
        page = request(server, "/learning").text
        answer = request(server, "/learning.json").text
    assert "NaN" not in re.search(r"data-values>(.*?)</script>", page, re.S)[1] + answer
    last = embedded(page)["evaluations"][-1]
    assert {*chain(*last["probabilities"], *last["of_answers"], last["label_1"])} == {None}


# --- curves


def test_curves_are_the_metrics_of_the_run(server, run):
    values = embedded(request(server, "/curves").text)
    (found,) = values["runs"]
    history = RunHistory.of(run, "run")
    for name in ("mlm_loss", "heldout/mlm_loss", "gradient_norm"):
        steps, numbers = history.points(name)
        assert found["series"][name][0] == steps.tolist()
        assert found["series"][name][1] == pytest.approx(numbers.tolist(), rel=1e-5)
    first = values["charts"][0]
    assert first["lines"][:2] == [["training", "mlm_loss"], ["held out", "heldout/mlm_loss"]]
    assert found["complete"]


def test_a_growing_run_is_read_again_and_an_unchanged_one_is_not_sent(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    with running(make_site([copy]).server()) as server:
        before = request(server, "/curves.json").json
        same = request(server, f"/curves.json?version={before['version']}").json
        assert same == {"version": before["version"]}
        line = json.dumps({**read_metrics(run)[0], "step": 13, "gradient_norm": 0.0})
        with (copy / METRICS).open("a") as file:
            file.write(f'{line}\n{{"step": 14, "mlm_')
        after = request(server, f"/curves.json?version={before['version']}").json
    (grown,) = after["runs"]
    assert grown["step"] == 13
    assert "the gradient norm is 0" in grown["warnings"][-1]["words"]
    assert grown["warnings"][-1]["step"] == 13
    assert ["last logged step", "13 of 12"] in after["figures"]


def test_pages_are_whole_while_32_clients_read_them_and_the_run_goes_on(
    small_folder, run, classifier, tmp_path
):
    copy = shutil.copytree(run, tmp_path / "run")
    first = (run / METRICS).read_text().splitlines()[0]
    is_read = threading.Event()

    def go_on():
        """What training does: lines that come in two parts, checkpoints in place of older ones."""
        step = 12
        while not is_read.wait(0.01):
            step += 1
            with (copy / METRICS).open("a") as file:
                for part in (first[:9], f"{step}{first[10:]}\n"):
                    file.write(part)
                    file.flush()
            older, newer = (copy / f"checkpoints/step-{n:08d}" for n in (step - 1, step))
            shutil.copytree(older, tmp_path / "new").rename(newer)
            shutil.rmtree(older)

    site = make_site([small_folder, copy, classifier])
    asked = [partial(request, path=name[4:]) for name in site.routes() if name.startswith("GET ")]
    asked.append(partial(post, path="/fill", values={"text": "the [MASK]", "run": 0}))
    with running(site.server()) as server, ThreadPoolExecutor(33) as pool:
        writing = pool.submit(go_on)
        replies = list(pool.map(lambda ask: ask(server), asked * 2))
        is_read.set()
        writing.result()
    assert {reply.text for reply in replies if reply.status >= 400} == set()


def test_runs_are_drawn_over_each_other(run, tmp_path):
    other = shutil.copytree(run, tmp_path / "<b>other")
    with running(make_site([run, other]).server()) as server:
        html = request(server, "/curves").text
        assert [r["name"] for r in embedded(html)["runs"]] == ["run", "<b>other"]
        assert "&lt;b&gt;other" in html
        assert "<b>other" not in html
        assert "The configs are equal." in html
        assert "<option" in request(server, "/learning?run=1").text


# --- try it


def test_masks_are_filled_as_by_the_command(server, run):
    text = "the [MASK] sat on the [MASK]"
    found = post(server, "/fill", {"text": text, "run": 0}).json
    (filled,) = fill(run, [text], top=5)
    assert found["text"] == filled.text
    for ours, theirs in zip(found["guesses"], filled.guesses, strict=True):
        assert [guess["token"] for guess in ours] == [guess.token for guess in theirs]
        assert [guess["probability"] for guess in ours] == pytest.approx(
            [guess.probability for guess in theirs]
        )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"text": "the cat"}, "no [MASK] in 'the cat'"),
        ({"text": " "}, "the text is empty"),
        ({"text": 5}, "the text is empty"),
        ({}, "the text is empty"),
        ({"text": "[MASK]", "run": 1}, "there is no run 1; there are 1."),
        ({"text": "[MASK]", "run": "0"}, "there is no run '0'"),
        ({"text": "[MASK]", "run": True}, "there is no run True"),
        ({"text": "x" * 5001}, "the text has 5,001 characters; 5,000 is the most."),
    ],
)
def test_what_cannot_be_filled_is_explained(server, values, message):
    reply = post(server, "/fill", values)
    assert reply.status == 400
    assert message in reply.json["error"]


def test_a_run_that_goes_on_training_answers_with_its_newest_checkpoint(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    for step in (8, 12):
        shutil.rmtree(copy / "checkpoints" / f"step-{step:08d}")
    model = RunModel(copy)
    early = model.fill("the [MASK]", top=3)
    shutil.copytree(run / "checkpoints" / "step-00000012", copy / "checkpoints" / "step-00000012")
    late = model.fill("the [MASK]", top=3)
    assert [late] == fill(run, ["the [MASK]"], top=3)
    assert late != early


def test_another_run_of_as_many_steps_in_the_folder_answers_itself(small_folder, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    site = make_site([small_folder, copy])
    [rows] = [tab.data for tab in site.tabs if tab.path == "/examples"]
    asked = {"text": "the [MASK]", "run": 0}
    old = site.actions["/fill"](asked), rows({"only": "wrong", "shard": 1})
    steps = [copy / "checkpoints" / f"step-{step:08d}" for step in (4, 12)]
    shutil.rmtree(steps[1])
    steps[0].rename(steps[1])
    filled, ranked = site.actions["/fill"](asked), rows({"only": "wrong", "shard": 1})
    assert filled != old[0]
    assert ranked != old[1]
    assert [filled["guesses"]] == [asdict(found)["guesses"] for found in fill(copy, ["the [MASK]"])]


def test_the_loss_of_a_row_is_that_of_an_evaluation(run, small_folder):
    entry = read_manifest(small_folder).of_split("validation")[0]
    _, losses = RunModel(run).guess_rows(read_shard(small_folder / entry.name))
    batches = evaluation_batches(small_folder, batch_size=9, limit=9)
    weights = next(iter(batches)).batch.masked_lm_weights.sum(1).numpy()
    result = evaluate(run, small_folder, split="validation", batch_size=9, limit=9)
    assert (np.array(losses) * weights).sum() / weights.sum() == pytest.approx(
        result.mlm_loss, rel=1e-3
    )


def test_rows_are_ranked_by_the_model(server):
    values = request(server, "/examples.json?only=wrong&shard=1").json
    losses = [float(re.search(r"loss ([\d.]+)", row["notes"][-1])[1]) for row in values["rows"]]
    assert losses == sorted(losses, reverse=True)
    assert "✗" in request(server, "/examples?only=wrong&shard=1").text


def test_texts_are_classified_as_by_the_classifier(server, classifier):
    text = "The cat sat."
    found = post(server, "/classify", {"text": text}).json
    (probabilities,) = load_classifier(classifier).classify(Texts([text]))
    by_name = dict(zip(("bad", "<b>good</b>"), probabilities.tolist(), strict=True))
    assert {c["name"]: c["probability"] for c in found["classes"]} == pytest.approx(by_name)
    assert found["classes"][0]["probability"] == max(by_name.values())
    assert "".join(word["space"] + word["word"] for word in found["words"]) == text


def test_the_effect_of_a_word_is_what_its_deletion_changes(classifier):
    loaded = load_classifier(classifier)
    text = "the cat  sat on the mat"
    words = word_effects(loaded, [text], label=1)
    without = loaded.classify(Texts([text, "the   sat on the mat"]))[:, 1]
    assert words[1].word == "cat"
    assert words[1].effect == pytest.approx(without[0] - without[1])
    largest = max(words, key=lambda word: abs(word.effect))
    assert largest.word == "cat"
    assert word_effects(loaded, [""], label=0) == []
    many = word_effects(loaded, ["cat " * (WORDS + 3)], label=0)
    assert [word.effect for word in many[WORDS:]] == [None] * 3
    assert None not in [word.effect for word in many[:WORDS]]
    many = word_effects(replace(loaded, truncate="start"), ["cat " * (WORDS + 3)], label=0)
    assert [word.effect for word in many[:3]] == [None] * 3
    assert None not in [word.effect for word in many[3:]]


def test_pairs_have_two_texts(tmp_path):
    folder = write_small_classifier(tmp_path / "pairs", text_pair="second")
    with running(make_site([folder]).server()) as server:
        page = request(server, "/try").text
        assert re.search(r'Second text \(second\)\s*<textarea name="second"', page)
        found = post(server, "/classify", {"text": "the cat", "second": "a dog ran"}).json
        assert [word["part"] for word in found["words"]] == [0, 0, 1, 1, 1]
        assert post(server, "/classify", {"text": "the cat"}).status == 400


# --- the command


def test_the_exported_page_is_one_file_that_runs_only_its_own_script(site, tmp_path):
    out = tmp_path / "page.html"
    site.export(out)
    html = out.read_text()
    loaded = re.findall(r'(?:src|href)="([^"#][^"]*)"', html)
    assert set(loaded) == {"data:,"}
    assert re.search(r"script-src 'sha256-[\w+/]{43}='", html)
    for name in ("examples", "learning", "curves", "classifier"):
        assert f'<section id="{name}">' in html
        assert f'<a href="#{name}">' in html
    assert "<form" not in html
    assert "data-live" not in re.sub(r"<script>.*</script>", "", html, flags=re.S)
    assert not list(tmp_path.glob(".*"))


def test_what_a_user_can_fix_is_one_line(small_folder, run, classifier, tmp_path):
    assert "is an empty folder; give a data set, a run or a cl" in refused("view", tmp_path)
    assert "is a file and not a folder" in refused("view", __file__)
    assert "2 folders are a data set" in refused("view", small_folder, small_folder)
    assert "5 folders are a run; a page shows at most 4" in refused("view", *[run] * 5)
    assert "2 folders are a classifier" in refused("view", classifier, run, classifier)
    assert "is a folder; give" in refused("view", small_folder, "--export", tmp_path)
    options = ("--export", tmp_path / "a.html", "--port=8000")
    assert "leave it out with --export" in refused("view", small_folder, *options)
    (tmp_path / "a.jsonl").write_text('{"text": "One."}')
    for line in (("view", small_folder, "--export"), ("report", small_folder, "--out")):
        assert "exists and is not an HTML page" in refused(*line, tmp_path / "a.jsonl")
    assert (tmp_path / "a.jsonl").read_text() == '{"text": "One."}'
    short = write_data_set(tmp_path / "long", train=(3,), config=replace(SMALL, max_seq_length=32))
    assert "reads 16 at most; give shorter ones" in refused("view", short, run)
    copy = shutil.copytree(run, tmp_path / "run")
    config = json.loads((copy / "run.json").read_text())
    other = sealed(config | {"tokenizer_digest": "0" * 64})
    (copy / "run.json").write_text(json.dumps(other))
    assert "was made with another tokenizer" in refused("view", small_folder, copy)
    (copy / "run.json").write_text("{")
    assert "run.json cannot be read" in refused("view", copy)


def test_shards_in_a_store_can_be_browsed(small_folder):
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.put(str(small_folder), "/view", recursive=True)
    try:
        _, make = make_site([path_of("memory://view")]).routes()["GET /examples"]
        assert "row 0</h3>" in make({})
    finally:
        store.rm("/view", recursive=True)


def test_a_run_in_a_store_is_shown_from_a_copy(run, tmp_path, monkeypatch):
    monkeypatch.setenv("CLOZELINE_CACHE", str(tmp_path / "cache"))
    out, pages = tmp_path / "page.html", set()
    for given in (f"file://{run}", str(run)):
        assert invoke("view", given, "--export", out).stdout == f"{out}\n"
        pages.add(out.read_text().replace(given, "GIVEN"))
    assert len(pages) == 1


def test_ctrl_c_ends_the_command_without_an_error(small_folder):
    """In a process of its own, which is asked for a page first."""
    command = [sys.executable, "-m", "clozeline", "view", str(small_folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=ROOT, env=environment, **pipes) as process:
        url = process.stdout.readline().split()[0]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        with build_opener(ProxyHandler({})).open(url, timeout=60) as page:
            assert b"<h1>Examples</h1>" in page.read()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors.strip()) == (0, "")


# --- colours


def luminance(colour):
    """WCAG 2.1, relative luminance of "#rrggbb"."""
    values = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_in_light_and_dark_mode(server):
    """WCAG 2.1 AA: 4.5 for text, 3 for lines."""
    style = request(server, "/style.css").text
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
                   for block in re.findall(r":root \{(.*?)\}", style, re.S))  # fmt: skip
    assert light.keys() == dark.keys()
    chips = ("span-a", "span-b", "masked", "random", "kept", "right", "wrong")
    for colours in (light, dark):
        for name in ("paper", *chips):
            assert contrast(colours["ink"], colours[name]) >= 4.5, name
        assert contrast(colours["quiet"], colours["paper"]) >= 4.5
        assert contrast(colours["series-1"], colours["paper"]) >= 4.5  # links
        for number in range(1, 5):
            assert contrast(colours[f"series-{number}"], colours["paper"]) >= 3
        for one, other in combinations(("masked", "random", "kept"), 2):
            assert colours[one] != colours[other]
