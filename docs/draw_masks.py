"""Draws docs/manual/masks.png: three rows of a data set as `clozeline report` shows them.

PYTHONPATH=. python docs/draw_masks.py work/shards docs/manual/masks.png
"""

import argparse
import base64
import tempfile
from pathlib import Path

from clozeline.train.report.cli import page_of, sorted_by_kind
from tests.support.browser import chromium

ROWS = 3
#: Left, top, width and height of the legend and the first rows, in CSS pixels.
BOX = f"""
document.documentElement.style.overflow = "hidden";  // the screenshot has no scroll bar either
const parts = [document.querySelector("main .legend"),
               ...[...document.querySelectorAll(".example")].slice(0, {ROWS})];
const boxes = parts.map(part => part.getBoundingClientRect());
const top = boxes[0].top - 8, bottom = boxes[boxes.length - 1].bottom + 8;
return [boxes[0].left - 12, top, boxes[0].width + 24, bottom - top];
"""


def main() -> None:
    """Parse the arguments, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shards", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, chromium(Path(folder)) as browser:
        page = Path(folder) / "page.html"
        page.write_text(page_of(sorted_by_kind([given.shards]), title="masks"))
        browser.emulate(width=860)
        browser.open(page.as_uri())
        left, top, width, height = browser.run(BOX)
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1.5}
        found = browser.chrome("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        given.out.write_bytes(base64.b64decode(found["data"]))


if __name__ == "__main__":
    main()
