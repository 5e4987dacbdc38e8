"""What `diagnose()` says of every record and trace that is here, and the names that `--json` has.

`python tests/test_golden.py` writes `golden_verdicts.json` anew. A line that changes in it changes
on purpose, and the commit says why.
"""

import json
import sys
from pathlib import Path

import pytest

import labkit as lk

HERE = Path(__file__).parent
GOLDEN = HERE / "golden_verdicts.json"
RECORDS = {
    "shipped": HERE.parent / "labkit" / "records",
    "tests": HERE,
    "traces": HERE.parents[1] / "shared" / "traces",  # too large for the repository
}
SUFFIXES = (".jsonl.gz", ".trace.json.gz", ".json.gz", ".tar.gz")


def records():
    """Every record and trace that is here, by the name that it has in the golden file."""
    return {
        f"{where}/{path.relative_to(folder).as_posix()}": path
        for where, folder in RECORDS.items()
        for path in sorted(folder.rglob("*"))
        if path.name.endswith(SUFFIXES)
    }


def verdict(path):
    """What is said of one record, in a line."""
    if path.name.endswith(".jsonl.gz"):
        found = lk.load(path)
        found = found.diagnose() if hasattr(found, "diagnose") else None
    else:
        found = lk.diagnose(path)
    if found is None:
        return "no verdict: rows that were measured"
    for each in found.findings:
        page = (HERE.parent / "notebooks" / each.page).read_text(encoding="utf-8")
        assert f"`{each.cause.replace('_', ' ')}`" in page.split("\n\n")[1], each.cause
    first = found.findings[0]
    remedy = first.remedies[0].key if first.remedies else None
    return f"{first.name}, {first.cause}, {first.lost_share:.2f}, {remedy}"


def keys(value, name=""):
    """The names in a JSON value, the ones inside as `outer.inner`; of a list, its first item's."""
    if isinstance(value, list) and value:
        return keys(value[0], f"{name}[]")
    if not isinstance(value, dict):
        return {name}
    return {name} - {""} | {
        each for inner in value for each in keys(value[inner], f"{name}.{inner}".strip("."))
    }


def json_names():
    """The names of what the public results say as JSON."""
    run = lk.load(RECORDS["shipped"] / "Intel-Xeon-Processor" / "workers-2.jsonl.gz")
    return {
        "diagnosis": sorted(keys(json.loads(json.dumps(run.diagnose().to_dict())))),
        "run": sorted(keys(run.to_dict())),
    }


GOLDEN_VALUES = json.loads(GOLDEN.read_text()) if GOLDEN.is_file() else {}


def test_every_record_that_is_here_is_in_the_golden_file():
    named = {name for name in GOLDEN_VALUES["verdicts"] if not name.startswith("traces/")}
    assert named == {name for name in records() if not name.startswith("traces/")}


@pytest.mark.parametrize("name", records())
def test_a_verdict_is_as_it_was(name):
    assert verdict(records()[name]) == GOLDEN_VALUES["verdicts"][name]


def test_the_names_in_json_are_as_they_were():
    assert json_names() == GOLDEN_VALUES["json"]


if __name__ == "__main__":
    there = {name: verdict(path) for name, path in records().items()}
    # The traces may lie elsewhere
    kept = {name: said for name, said in GOLDEN_VALUES["verdicts"].items() if "traces/" in name}
    golden = {"verdicts": kept | there, "json": json_names()}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
    sys.exit(0)
