"""`clozeline view` in a real browser: Chromium, headless, driven over WebDriver."""

import json
import re
import shutil

import pytest

from clozeline.train.artifacts.run import LEARNING
from clozeline.train.monitoring.metrics import METRICS, read_metrics
from clozeline.train.view.view import make_site
from tests.support.browser import CHROMIUM, DRIVER, INSTALL, chromium
from tests.support.http_clients import running

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=INSTALL)]
pytest_plugins = ["tests.support.view_fixtures"]
TAB, END, HOME, LEFT, RIGHT = "\ue004", "\ue010", "\ue011", "\ue012", "\ue014"  # WebDriver's keys
PAGES = ("dataset", "examples", "learning", "curves", "classifier", "predictions", "try")
#: Elements that are cut off or push the page wider than the window.
TOO_WIDE = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


def first_title(browser):
    return browser.text(".example h3")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1400, 1280, 390])
def test_every_page_fits_and_the_console_stays_empty(browser, server, width, dark):
    browser.emulate(width=width, dark=dark)
    for page in PAGES:
        browser.open(server.url + "/" + page)
        assert browser.run(TOO_WIDE) <= 0, page
        assert browser.log() == [], page
        assert browser.run("return document.querySelectorAll('i').length") == 0
    background = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 30)" if dark else "rgb(255, 255, 255)")


def test_rows_are_paged_and_searched(browser, server):
    browser.emulate(width=1280)
    browser.open(server.url)
    assert first_title(browser) == "train-00000-of-00005.arrow, row 0"
    browser.click("a[rel=next]")
    assert first_title(browser) == "train-00000-of-00005.arrow, row 10"
    browser.click("a[rel=prev]")
    assert first_title(browser) == "train-00000-of-00005.arrow, row 0"
    browser.type("[name=text]", "cat\n")
    browser.wait("return location.search.includes('text=cat')")
    rows = browser.run(
        "return [...document.querySelectorAll('.example')].map(row => row.innerText)"
    )
    assert rows
    assert all("cat" in row for row in rows)
    browser.click(".notes a")
    assert browser.run("return document.querySelectorAll('.example').length") == 1


def test_the_first_tab_key_skips_to_the_content(browser, server):
    browser.open(server.url + "/curves")
    browser.type("body", TAB)
    assert browser.run("return document.activeElement.className") == "skip"
    browser.type(".skip", "\n")
    assert browser.run("return location.hash") == "#main"


def test_the_slider_shows_each_evaluation(browser, server, run):
    _, *lines = [json.loads(line) for line in (run / LEARNING).read_text().splitlines()]
    expected = {line["step"]: [row[0] for row in line["of_answers"]] for line in lines}
    browser.open(server.url + "/learning")
    first_percents = (
        "return [...document.querySelectorAll('[data-row]')]"
        ".map(row => parseInt(row.querySelector('.guess').textContent))"
    )
    for step in (12, 8, 4):
        assert f"Step {step}:" in browser.text("[data-summary]")
        value = "return document.querySelector('[data-slider]').getAttribute('aria-valuetext')"
        assert browser.run(value) == f"step {step}"
        assert browser.run(first_percents) == pytest.approx(
            [100 * p for p in expected[step]], abs=0.51
        )
        browser.type("[data-slider]", LEFT)
    browser.click("[data-play]")
    browser.wait("return document.querySelector('[data-summary]').textContent.includes('Step 12')")


def test_right_and_wrong_are_marked_in_words_and_colour(browser, server):
    browser.open(server.url + "/learning")
    marks = browser.run(
        "return [...document.querySelectorAll('[data-row] .right, [data-row] .wrong')]"
        ".map(chip => [chip.classList.contains('right'), chip.innerText])"
    )
    assert marks
    for is_right, text in marks:
        assert ("✓" in text, "✗" in text) == (is_right, not is_right)


def test_a_growing_run_is_drawn_without_a_reload(browser, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "summary.json").unlink()
    with running(make_site([copy]).server()) as server:
        browser.open(server.url + "/curves")
        state = "return document.querySelector('[data-state]').textContent"
        assert browser.run(state) == "step 12, not complete"
        browser.run("window.same = true")
        label = "return document.querySelector('[data-chart=mlm_loss] svg[tabindex]').ariaLabel"
        before = browser.run(label)
        line = {**read_metrics(run)[0], "step": 99, "mlm_loss": 1.25, "gradient_norm": 0.0}
        with (copy / METRICS).open("a") as file:
            file.write(json.dumps(line) + "\n")
        browser.wait(f"return ({state[7:]}) === 'step 99, not complete'")
        assert browser.run(label) != before
        assert "step 99: the gradient norm is 0" in browser.text("[data-warnings]")
        assert browser.run(
            "return document.querySelectorAll('[data-chart=mlm_loss] .warning').length"
        )
        browser.open(server.url + "/learning")
        learned = (copy / LEARNING).read_text().splitlines()
        with (copy / LEARNING).open("a") as file:
            file.write(json.dumps({**json.loads(learned[-1]), "step": 99}) + "\n")
        browser.wait(
            "return document.querySelector('[data-summary]').innerText.includes('Step 99')"
        )


def test_curves_are_read_with_the_keyboard_and_smoothed(browser, server, run):
    browser.open(server.url + "/curves")
    chart = "[data-chart=mlm_loss] svg[tabindex]"
    reading = "[data-chart=mlm_loss] .reading"
    for key, step in ((HOME, 1), (RIGHT, 2), (END, 12), (LEFT, 11)):
        browser.type(chart, key)
        assert browser.text(reading).startswith(f"step {step}: training ")
    before = browser.text(reading)
    evaluated = {line["step"]: line for line in read_metrics(run) if "heldout/mlm_loss" in line}
    held_out = evaluated[8]["heldout/mlm_loss"]  # the last one before step 11
    assert f"held out {held_out:.4g} (step 8)" in before
    browser.type("[data-smoothing]", HOME)  # none
    raw = next(line["mlm_loss"] for line in read_metrics(run) if line["step"] == 11)
    assert browser.text(reading).startswith(f"step 11: training {raw:.4g},")
    assert browser.text(reading) != before


def test_masks_are_filled_and_texts_classified(browser, server):
    browser.open(server.url + "/try")
    browser.clear("[data-fill] textarea")
    browser.type("[data-fill] textarea", "the [MASK] sat on the [MASK]")
    browser.click("[data-fill] button")
    browser.wait(
        "return document.querySelectorAll('[data-fill] [data-result] tbody tr').length === 10"
    )
    browser.clear("[data-fill] textarea")
    browser.type("[data-fill] textarea", "the cat")
    browser.click("[data-fill] button")
    alert = "return document.querySelector('[data-fill] [role=alert]')?.textContent"
    assert "no [MASK] in 'the cat'" in browser.wait(alert)
    browser.clear("[data-classify] textarea")
    browser.type("[data-classify] textarea", "the cat <b>sat</b>")
    browser.click("[data-classify] button")
    browser.wait("return document.querySelector('[data-classify] [data-result] mark')")
    result = browser.text("[data-classify] [data-result]")
    assert "<b>good</b>" in result
    assert "<b>sat</b>" in result
    assert re.search(r"[+−]\d", browser.text("[data-classify] mark"))
    browser.log()  # the refused request is in the console, too


def test_the_exported_page_works_from_the_disk(browser, small_folder, run, classifier, tmp_path):
    out = tmp_path / "page.html"
    make_site([small_folder, run, classifier]).export(out)
    browser.log()
    for width in (1280, 390):
        browser.emulate(width=width)
        browser.open(out.as_uri())
        assert browser.run(TOO_WIDE) <= 0
        assert browser.log() == []
        assert browser.run("return document.querySelectorAll('[data-chart]').length") == 8
        browser.type("[data-slider]", LEFT)
        assert "Step 8:" in browser.text("[data-summary]")


def test_a_page_of_another_site_can_read_nothing(browser, server, tmp_path):
    """Not even by the address: the browser says where a request comes from."""
    (tmp_path / "evil.html").write_text("<title>evil</title>")
    browser.open((tmp_path / "evil.html").as_uri())
    address = f"{server.url}/examples.json"
    read = f"return fetch('{address}').then(reply => reply.text(), () => 'refused')"
    assert browser.run(read) == "refused"
    browser.log()
