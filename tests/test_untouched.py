"""A watched script does, prints and shows what it does without labkit, whatever its objects are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import untouched_loops

from labkit.watching import site

pytestmark = pytest.mark.slow
SCRIPT = Path(untouched_loops.__file__)
EACH_IS_RECORDED = """
import importlib, os, runpy, sys
if os.environ.get("LABKIT_WATCHING"):  # then labkit has another name here
    importlib.import_module("_labkit_watching.watching.hook").MOST_LOADERS = 1_000
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def said_by_case(*command, **environment):
    """Run the script; return what each case said on stdout and on stderr."""
    streams = subprocess.run(
        [sys.executable, "-c", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
        env=os.environ | environment,
    )
    said = {}
    for text in (streams.stdout, streams.stderr):
        for part in text.split("=== ")[1:]:
            name, _, rest = part.partition("\n")
            said.setdefault(name, []).append(rest)
    return said


@pytest.fixture(scope="module")
def alone_and_watched(tmp_path_factory):
    runs = tmp_path_factory.mktemp("runs")
    hooked = {"LABKIT_WATCHING": str(runs), "PYTHONPATH": next(iter(site.__path__))}
    both = said_by_case(EACH_IS_RECORDED, SCRIPT), said_by_case(EACH_IS_RECORDED, SCRIPT, **hooked)
    assert len(list(runs.glob("*/events.jsonl"))) > len(untouched_loops.LOADERS)
    return both


@pytest.mark.parametrize("name", untouched_loops.CASES)
def test_a_watched_loop_says_what_it_says_alone_and_its_objects_are_asked_nothing(
    alone_and_watched, name
):
    alone, watched = alone_and_watched
    assert watched[name] == alone[name] and alone[name]
