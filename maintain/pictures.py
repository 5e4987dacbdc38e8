"""Make the README's two pictures: `python maintain/pictures.py`.

The first is drawn from records that ship: an H200 starved by a loader, and fed by it. The second
films a live panel in JupyterLab, in headless Chromium, starved first, then fed by three workers:
real runs, so on a quiet machine. It prints what was predicted between them, and what came.
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

import labkit as lk
from labkit.view.style import png_of

IMAGES = Path(__file__).parents[1] / "notebooks" / "images"
CELL = """import labkit as lk
lk.panel(lk.Pipeline(seconds=4, steps=400, xray=False), ["num_workers"])"""
WORKERS = 3
FRAME_MS = 900  # a picture takes the browser 60 ms of a core, which the run lacks meanwhile
HOLD_MS = 2500  # how long the last frame of each run is shown
SIZE_PX = (820, 600)  # the verdict and the history lie below
COLOURS = 48


def picture_of(panel: Locator) -> Image.Image:
    """Return the upper part of what the panel shows."""
    shown = Image.open(io.BytesIO(panel.screenshot())).convert("RGB")
    width, _ = SIZE_PX
    canvas = Image.new("RGB", SIZE_PX, "white")
    canvas.paste(shown.resize((width, round(shown.height * width / shown.width))))
    return canvas


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


def filmed() -> list[list[Image.Image]]:
    """Film two runs of one panel, the second with workers."""
    with browser.lab_in(Path(tempfile.mkdtemp())) as lab, sync_playwright() as playwright:
        chromium = browser.chromium_of(playwright)
        size = {"width": 1200, "height": 1300}
        page = browser.page_of(chromium, viewport=size, device_scale_factor=1)
        panel = browser.opened(page, lab, "hero", CELL)
        starved = film(panel)
        for _ in range(WORKERS):
            panel.locator(".noUi-handle").first.press("ArrowRight")
        page.wait_for_timeout(1500)  # the prediction is drawn
        fed = film(panel)
        print(panel.inner_text())
        chromium.close()
    return [starved, fed]


def main() -> None:
    """Draw the one, film the other: an animation that repeats."""
    starved, fed = (lk.recorded(f"NVIDIA-H200/workers-{count}") for count in (0, 8))
    (IMAGES / "starved-and-fed.png").write_bytes(png_of(fed.compare(starved).plot()))
    runs = filmed()
    palette = runs[-1][-1].quantize(COLOURS)
    drawn = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in sum(runs, [])]
    shown_ms = [ms for run in runs for ms in [FRAME_MS] * (len(run) - 1) + [HOLD_MS]]
    how = {"append_images": drawn[1:], "duration": shown_ms, "loop": 0, "optimize": True}
    drawn[0].save(IMAGES / "live-panel.gif", save_all=True, **how)


if __name__ == "__main__":
    main()
