"""The wheel, as a stranger installs it: `python maintain/wheel.py [--extras hf,lightning] [--lab]`.

Builds it, installs it into a fresh environment in a folder of its own, imports it there, and runs
the README's lines of the command line on the README's own script. `--lab` also opens the course by
`labkit lab` in headless Chromium and runs the first panel (the extra `notebooks` is needed in that
environment, playwright in this one).
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "maintain" / "scripts" / "24_xray_pneumonia.py"  # the README's train.py
IN_README = re.compile(r"^\.venv/bin/(labkit .*)$", re.MULTILINE)
IMPORTED = """
import importlib, pathlib, pkgutil, sys, labkit
assert sys.prefix in labkit.__file__, labkit.__file__
for name in labkit.__all__:
    getattr(labkit, name)
for module in sys.argv[1:]:
    importlib.import_module(module)
print(labkit.__version__, labkit.__file__)
"""
IMPORTS_OF = {  # what an extra makes importable
    "hf": "labkit.hf",
    "kernels": "kernels",
    "lightning": "lightning",
    "notebooks": "jupyterlab",
}


def build(folder: Path) -> Path:
    """Build the wheel of this checkout in `folder`."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, ROOT]
    subprocess.run(command, check=True)
    [wheel] = folder.glob("gpu_labkit-*.whl")
    return wheel


def installed(wheel: Path, extras: str, folder: Path) -> Path:
    """Install the wheel in a new environment in `folder`; return its folder of commands."""
    venv.create(folder, with_pip=True)
    commands = folder / ("Scripts" if os.name == "nt" else "bin")
    named = f"{wheel}[{extras}]" if extras else str(wheel)
    subprocess.run([commands / "python", "-m", "pip", "install", "-q", named], check=True)
    return commands


def smoke(commands: Path, extras: list[str], folder: Path) -> None:
    """Import labkit outside the checkout, and run its command line there."""
    paths = {"PATH": f"{commands}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": ""}
    shutil.copy(SCRIPT, folder / "train.py")

    def call(*command: str) -> str:
        print("+", *command[:2], flush=True)
        env = os.environ | paths
        done = subprocess.run(command, cwd=folder, env=env, check=True, stdout=subprocess.PIPE)
        return done.stdout.decode()

    modules = [IMPORTS_OF[extra] for extra in extras if extra in IMPORTS_OF]
    print(call("python", "-c", IMPORTED, *modules))
    for line in IN_README.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        print(call(*line.replace(".venv/bin/", "").split()))
    call("labkit", "--help")
    assert json.loads(call("labkit", "machine", "--json"))["cpu_cores"]
    run = json.loads(call("labkit", "run", "--json", "--set", "seconds=1", "xray=false"))
    assert run["outcome"] == "finished", run
    course = json.loads(call("labkit", "lab", "course", "--copy-only", "--json"))
    assert "00_start_here.ipynb" in course["copied"], course


def open_the_course(commands: Path, folder: Path) -> None:
    """Open the course by `labkit lab`, run its first panel, and wait for a drawn step."""
    sys.path.insert(0, str(ROOT / "tests"))
    import test_browser as browser
    from playwright.sync_api import sync_playwright

    command = (str(commands / "labkit"), "lab", "root")
    with browser.lab_in(folder, command) as (_root, url), sync_playwright() as playwright:
        page = browser.page_of(browser.chromium_of(playwright))
        page.goto(f"{url}lab/tree/00_start_here.ipynb?token=labkit&reset")
        page.wait_for_function(browser.KERNEL_IS_IDLE)
        page.evaluate(browser.RUN_ALL)
        panel = browser.panels(page).first
        browser.wait_for_frames(browser.view_of(panel))
        page.screenshot(path=folder / "course.png")
        print(f"the course's first panel was drawn: {folder}/course.png")


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--extras", default="", help="separated by commas")
parser.add_argument("--lab", action="store_true")
asked = parser.parse_args()
place = Path(tempfile.mkdtemp(prefix="labkit-wheel-"))
os.environ["LABKIT_HOME"] = str(place / "home")
commands = installed(build(place), asked.extras, place / "venv")
smoke(commands, asked.extras.split(","), place)
if asked.lab:
    (place / "lab").mkdir()
    open_the_course(commands, place / "lab")
