"""Take the README's pictures of a finished nightly: the lineage in the Dagster UI, and the HUD.

Run `make nightly`, then `make dev` in another terminal, then `.venv/bin/python docs/take_pictures.py`. Chromium must be at
`ACCEL_CI_CHROMIUM` or on PATH.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"


def main(ui: str = "http://127.0.0.1:3000") -> None:
    """Write `lineage.png` and `hud.png`."""
    chromium = os.environ.get("ACCEL_CI_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 560})
        page.goto(f"{ui}/assets/hud?view=lineage&lineageScope=upstream&lineageDepth=10")
        page.wait_for_selector("text=runtime_image", timeout=60_000)
        page.wait_for_timeout(5000)
        page.screenshot(path=IMAGES / "lineage.png", clip={"x": 240, "y": 165, "width": 1360, "height": 395})
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto((ROOT / ".accel_ci" / "hud" / "index.html").as_uri())
        page.screenshot(path=IMAGES / "hud.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
