"""A headless Chromium, driven over the WebDriver protocol (W3C) with the standard library alone.

with chromium(tmp_path) as browser:
    browser.open("http://127.0.0.1:8000/")
    browser.run("return document.title")
"""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from tests.support.waiting import free_port, is_listening, wait_until

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
INSTALL = "needs a browser: apt-get install chromium chromium-driver"
PATIENCE = 60.0  # seconds, on a busy machine
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--no-proxy-server", "--disable-dev-shm-usage"),
)
OPEN = build_opener(ProxyHandler({}))  # 127.0.0.1 is never behind a proxy


@dataclass(frozen=True)
class Browser:
    """One window; `session` is its address at the driver."""

    session: str

    def open(self, url: str) -> None:
        """Load a page, and wait until its scripts have run."""
        self._post("/url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """The result of a script in the page: "return document.title"."""
        return self._post("/execute/sync", script=script, args=list(arguments))

    def log(self) -> list[str]:
        """Errors and warnings of the console since the last call."""
        return [entry["message"] for entry in self._post("/se/log", type="browser")]

    def emulate(self, *, width: int, dark: bool = False) -> None:
        """Set the width of the window in CSS pixels, and light or dark mode."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.chrome("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.chrome("Emulation.setEmulatedMedia", features=[scheme])

    def chrome(self, command: str, **params: Any) -> Any:
        """The result of a command of the DevTools protocol."""
        return self._post("/goog/cdp/execute", cmd=command, params=params)

    def _post(self, path: str, **values: Any) -> Any:
        return call(self.session + path, values)


def call(url: str, values: dict[str, Any] | None, *, method: str = "POST") -> Any:
    """A command of the protocol. Raises AssertionError with the driver's message."""
    data = None if values is None else json.dumps(values).encode()
    request = Request(url, data, {"Content-Type": "application/json"}, method=method)
    try:
        with OPEN.open(request, timeout=PATIENCE) as reply:
            return json.load(reply)["value"]
    except HTTPError as error:
        with error:
            raise AssertionError(json.load(error)["value"]["message"]) from None


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile in the folder."""
    assert DRIVER, INSTALL
    port = free_port()
    arguments = [*FLAGS, f"--user-data-dir={folder / 'profile'}"]
    options = {"binary": CHROMIUM, "args": arguments}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "WARNING"}}
    driver = subprocess.Popen(
        [DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}/session"
    try:
        wait_until(lambda: is_listening(port), "driver of the browser", seconds=PATIENCE)
        made = call(address, {"capabilities": {"alwaysMatch": wanted}})
        session = f"{address}/{made['sessionId']}"
        try:
            yield Browser(session)
        finally:  # ends the browser, which outlives its driver
            call(session, None, method="DELETE")
    finally:
        driver.terminate()
        driver.wait()
