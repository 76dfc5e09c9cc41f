"""`clozeline view` in a real browser: Chromium, headless, driven over WebDriver."""

import json
import shutil

import pytest

from clozeline.train.monitoring.metrics import METRICS, read_metrics
from clozeline.train.view.view import make_site
from tests.support.browser import CHROMIUM, DRIVER, INSTALL, chromium
from tests.support.http_clients import running

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=INSTALL)]
pytest_plugins = ["tests.support.view_fixtures"]
TAB, END, HOME, LEFT, RIGHT = "\ue004", "\ue010", "\ue011", "\ue012", "\ue014"  # WebDriver's keys
PAGES = ("dataset", "examples", "curves", "classifier", "predictions")
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


def test_a_page_of_another_site_can_read_nothing(browser, server, tmp_path):
    """Not even by the address: the browser says where a request comes from."""
    (tmp_path / "evil.html").write_text("<title>evil</title>")
    browser.open((tmp_path / "evil.html").as_uri())
    address = f"{server.url}/examples.json"
    read = f"return fetch('{address}').then(reply => reply.text(), () => 'refused')"
    assert browser.run(read) == "refused"
    browser.log()
