"""Record the README's picture: a live panel in a browser, starved first, then fed by six workers.

    python maintain/hero_gif.py [notebooks/images/live-panel.gif]

Run it on a quiet machine: what it films is a real run in JupyterLab, in headless Chromium.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import test_browser as browser

ROOT = Path(__file__).parents[1]
CELL = """import labkit as lk
lk.panel(lk.Pipeline(seconds=4, steps=400, xray=False), ["num_workers"])"""
WORKERS = 6
FRAME_MS = 500  # a picture takes the browser 60 ms of a core, which the run lacks meanwhile
HOLD_MS = 2500  # how long the last frame of each run is shown
WIDTH = 820  # pixels
HEIGHT = 760  # the verdict and the history lie below
COLOURS = 48


def film(panel: object, frames: list[Image.Image]) -> None:
    """Press Run, and add a picture of the panel every FRAME_MS until the run is over."""
    browser.button(panel, "Run").click()
    panel.page.wait_for_timeout(FRAME_MS)
    while browser.button(panel, "Stop").is_enabled():
        frames.append(picture_of(panel))
        panel.page.wait_for_timeout(FRAME_MS)
    panel.page.wait_for_timeout(1000)  # the verdict follows the last step
    frames.append(picture_of(panel))


def picture_of(panel: object) -> Image.Image:
    """Return what the panel shows."""
    image = Image.open(io.BytesIO(panel.screenshot())).convert("RGB")
    return image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.LANCZOS)


def save(runs: list[list[Image.Image]], path: Path) -> None:
    """Write the runs one behind the other as an animation that repeats."""
    frames = [frame for run in runs for frame in run]
    held = {id(run[-1]) for run in runs}
    pictures = []
    for frame in frames:
        canvas = Image.new("RGB", (WIDTH, HEIGHT), "white")
        canvas.paste(frame)
        pictures.append(canvas)
    palette = pictures[-1].quantize(COLOURS)
    drawn = [each.quantize(palette=palette, dither=Image.Dither.NONE) for each in pictures]
    durations = [HOLD_MS if id(frame) in held else FRAME_MS for frame in frames]
    drawn[0].save(
        path, save_all=True, append_images=drawn[1:], duration=durations, loop=0, optimize=True
    )


def main() -> None:
    """Film two runs of one panel."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = ROOT / "notebooks" / "images" / "live-panel.gif"
    parser.add_argument("path", type=Path, nargs="?", default=default)
    path = parser.parse_args().path
    folders = SimpleNamespace(mktemp=lambda name: Path(tempfile.mkdtemp(prefix=name)))
    lab = browser.lab_in(folders)
    address = next(lab)
    runs: list[list[Image.Image]] = [[], []]
    with browser.sync_api.sync_playwright() as playwright:
        chromium = browser.chromium_of(playwright)
        page = browser.page_of(
            chromium, viewport={"width": 1200, "height": 1300}, device_scale_factor=1
        )
        panel = browser.opened(page, address, "hero", CELL)
        panel.wait_for()
        film(panel, runs[0])
        handle = panel.locator(".noUi-handle").first
        handle.focus()
        for _ in range(WORKERS):
            handle.press("ArrowRight")
        page.wait_for_timeout(1500)  # the prediction is drawn
        film(panel, runs[1])
        chromium.close()
    next(lab, None)
    save(runs, path)
    print(f"{path}: {sum(map(len, runs))} frames, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
