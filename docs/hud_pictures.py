"""Take pictures of each page of a HUD, light and dark, on a wide and on a narrow screen.

`.venv/bin/python docs/hud_pictures.py HUD [FOLDER]`: HUD is the folder of the pages, such as `.accel_ci/hud`; FOLDER that
of the pictures, by default `docs/images/hud`. `python -m benchmarks.ten_nights --pictures FOLDER` makes a HUD with something
to tell on each page, and calls this. Chromium must be at `ACCEL_CI_CHROMIUM` or on PATH.

The pages are those of the folder: all at its top, and one of each folder below. A picture has the first 1,400 pixels of a
page's height at most.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright

from accel_ci.hud.addresses import test_address

ROOT = Path(__file__).resolve().parent.parent
WIDTHS, HEIGHT = (1280, 390), 1400
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
QUALITY = 30
MOST_BYTES = 2_000_000
LOADED = {"test.html": "#test h2", "search.html": "#results li"}
"""Elements that a page has once its data are loaded."""


def told_test(hud: Path) -> tuple[str, str]:
    """Suite and name of a test that has something to tell: one of an open incident, or a flaky one."""
    incidents = json.loads((hud / "incidents.json").read_text())["incidents"]
    flaky = json.loads((hud / "flaky.json").read_text())["flakiness"]["flaky"]
    found = [(suite, test) for one in incidents if one["state"] != "fixed" for _, suite, test in one["tests"]]
    found += [(one["suite"], one["test"]) for one in flaky]
    if not found:
        raise SystemExit(f"{hud}: no test has anything to tell; run `python -m benchmarks.ten_nights` first")
    return found[0]


def addresses(hud: Path) -> dict[str, str]:
    """The address of each page, relative to the folder, by the name of its pictures."""
    suite, test = told_test(hud)
    op = test.rpartition("[")[2].rstrip("]") or test
    asked = {"test.html": test_address(suite, test), "search.html": f"search.html?q={op}"}
    found = {path.stem: asked.get(path.name, path.name) for path in sorted(hud.glob("*.html"))}
    for folder in sorted({path.parent for path in hud.glob("*/*.html")}):
        newest = max(folder.glob("*.html"), key=lambda path: (path.stat().st_mtime_ns, path.name))
        found[folder.name.removesuffix("s")] = f"{folder.name}/{newest.name}"
    return found


def take(browser: Browser, hud: Path, address: str, width: int, scheme: Literal["light", "dark"]) -> bytes:
    """Take a picture of a page."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{hud.as_uri()}/{address}")
    if loaded := LOADED.get(address.partition("#")[0].partition("?")[0]):
        page.wait_for_selector(loaded)
    height = min(HEIGHT, page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": width, "height": height})
    shot = context.new_cdp_session(page).send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    context.close()
    return base64.b64decode(shot["data"])


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pictures. Return 1 when they take too much."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("hud", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "docs" / "images" / "hud")
    given = parser.parse_args(argv)
    hud, folder = given.hud.resolve(), given.folder
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.webp"):
        old.unlink()
    total, pages = 0, addresses(hud)
    with sync_playwright() as playwright:
        chromium = os.environ.get("ACCEL_CI_CHROMIUM") or shutil.which("chromium")
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        for name, address in pages.items():
            for width in WIDTHS:
                for scheme in SCHEMES:
                    picture = take(browser, hud, address, width, scheme)
                    (folder / f"{name}-{scheme}-{width}.webp").write_bytes(picture)
                    total += len(picture)
        browser.close()
    sys.stdout.write(f"{len(pages)} pages, {total / 1000:,.0f} kB: {folder}\n")
    return int(total > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
