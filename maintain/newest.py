"""The newest of everything that labkit needs: `python maintain/newest.py [--next-torch]`.

Installs into this environment what pyproject.toml asks for without its upper bounds (with
`--next-torch` a nightly build of torch, too), prints what is beyond a bound, and runs the fast
tests. The exit code is theirs. Python 3.11 or later.
"""

import argparse
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
NIGHTLY = "https://download.pytorch.org/whl/nightly/cpu"
PIP = [sys.executable, "-m", "pip", "install", "-q", "--upgrade"]

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--next-torch", action="store_true")
asked = parser.parse_args()
project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
extras = project["optional-dependencies"]
needed = [Requirement(text) for text in (*project["dependencies"], *sum(extras.values(), []))]
needed = [one for one in needed if one.marker is None or one.marker.evaluate()]
bounds = {one.name: one.specifier for one in needed}
for one in needed:
    one.specifier = SpecifierSet(",".join(f"{part}" for part in one.specifier if ">" in f"{part}"))
subprocess.run([*PIP, *map(str, needed)], check=True)
if asked.next_torch:
    subprocess.run([*PIP, "--pre", "torch", "--index-url", NIGHTLY], check=True)
for name, allowed in bounds.items():
    version = importlib.metadata.version(name)
    if not allowed.contains(version, prereleases=True):
        print(f"{name} {version} is beyond {allowed}", flush=True)
tests = [sys.executable, "-m", "pytest", "-m", "not slow"]
sys.exit(subprocess.run(tests, cwd=ROOT).returncode)
