"""Record the README's picture: a live panel in a browser, starved first, then fed by three workers.

    python maintain/hero_gif.py

Run it on a quiet machine: it films real runs in JupyterLab, in headless Chromium. Between the runs
the panel predicts; the film is kept where that came true, and the exit code is 1 where not.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Locator, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import test_browser as browser

GIF = Path(__file__).parents[1] / "notebooks" / "images" / "live-panel.gif"
CELL = """import labkit as lk
lk.panel(lk.Pipeline(seconds=4, steps=400, xray=False), ["num_workers"])"""
WORKERS = 3
FRAME_MS = 900  # a picture takes the browser 60 ms of a core, which the run lacks meanwhile
HOLD_MS = 2500  # how long the last frame of each run is shown
WIDTH_PX = 820
HEIGHT_PX = 600  # the verdict and the history lie below
MET = "inside the range"  # said of a prediction that came true; not where others took the cores
COLOURS = 48


def film(panel: Locator) -> list[Image.Image]:
    """Press Run; return a picture of the panel every FRAME_MS until the run is over."""
    frames = []
    browser.button(panel, "Run").click()
    panel.page.wait_for_timeout(FRAME_MS)
    while browser.button(panel, "Stop").is_enabled():
        frames.append(picture_of(panel))
        panel.page.wait_for_timeout(FRAME_MS)
    panel.page.wait_for_timeout(1000)  # the verdict follows the last step
    return [*frames, picture_of(panel)]


def picture_of(panel: Locator) -> Image.Image:
    """Return the upper part of what the panel shows."""
    image = Image.open(io.BytesIO(panel.screenshot())).convert("RGB")
    scaled = image.resize((WIDTH_PX, round(image.height * WIDTH_PX / image.width)))
    canvas = Image.new("RGB", (WIDTH_PX, HEIGHT_PX), "white")
    canvas.paste(scaled)
    return canvas


def save(*runs: list[Image.Image]) -> None:
    """Write the runs one behind the other as an animation that repeats."""
    palette = runs[-1][-1].quantize(COLOURS)
    drawn = []
    durations = []
    for run in runs:
        drawn += [picture.quantize(palette=palette, dither=Image.Dither.NONE) for picture in run]
        durations += [FRAME_MS] * (len(run) - 1) + [HOLD_MS]
    first, *others = drawn
    first.save(GIF, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)
    print(f"{GIF}: {len(drawn)} frames, {GIF.stat().st_size / 1e6:.2f} MB")


def main() -> None:
    """Film two runs of one panel."""
    with browser.lab_in(Path(tempfile.mkdtemp())) as lab, sync_playwright() as playwright:
        chromium = browser.chromium_of(playwright)
        size = {"width": 1200, "height": 1300}
        page = browser.page_of(chromium, viewport=size, device_scale_factor=1)
        panel = browser.opened(page, lab, "hero", CELL)
        starved = film(panel)
        handle = panel.locator(".noUi-handle").first
        for _ in range(WORKERS):
            handle.press("ArrowRight")
        page.wait_for_timeout(1500)  # the prediction is drawn
        fed = film(panel)
        came = panel.inner_text()
        chromium.close()
    if MET not in came:
        raise SystemExit(f"not kept, since the prediction was not met:\n{came}")
    save(starved, fed)


if __name__ == "__main__":
    main()
