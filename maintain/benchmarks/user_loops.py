"""Score the diagnosis on small training scripts as users write them (maintain/scripts).

    python maintain/benchmarks/user_loops.py [--repeats 1] [--only NAME]

Each script has one planted cause or none, stated in its head (`# bottleneck: host`, `# cause:
logging`); the lines to blame end in `# CAUSE`. No threshold was set on any of them: they are the
held-out half of the scripts by that author, whose other half set the thresholds. A script runs
under `labkit watch -- python SCRIPT`, its comments removed so that nothing in it tells. Right
means: the bottleneck is the one stated; the cause likewise; one of the first two lines of the first
finding is marked. A false alarm is a healthy script with a finding, a miss a planted one that is
called `compute`.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "scripts"
HEAD = re.compile(r"^# (bottleneck|cause): (\S.*)$", re.M)


def label(text: str) -> dict:
    """Read the label of a script: bottleneck, cause, and the lines to blame."""
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.rstrip().endswith("# CAUSE")]
    return dict(HEAD.findall(text)) | {"lines": lines}


def bare(text: str) -> str:
    """Return a script without its comments, line by line as it was."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return "\n".join(lines) + "\n"


def watch(path: Path) -> dict:
    """Return what `labkit watch` says of a script, run as a user would."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_text(bare(path.read_text()))
        watch = [sys.executable, "-m", "labkit", "watch", "--json", "--"]
        command = [*watch, sys.executable, str(copy)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
        if done.returncode or not done.stdout:
            raise RuntimeError(f"{path.name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def judged(found: dict, truth: dict) -> dict:
    """Say what is right in a verdict."""
    first = (found.get("findings") or [{}])[0]
    lines = [line["line"] for line in first.get("lines", ())[:2]]
    healthy = truth["bottleneck"] == "compute"
    return {
        "said": f"{found['bottleneck']}/{first.get('cause', '')}",
        "lines": lines,
        "class": found["bottleneck"] == truth["bottleneck"],
        "cause": None if healthy else first.get("cause") == truth["cause"],
        "line": bool(set(lines) & set(truth["lines"])) if truth["lines"] else None,
        "alarm": healthy and found["bottleneck"] not in ("compute", "unsure"),
        "miss": not healthy and found["bottleneck"] == "compute",
        "unsure": found["bottleneck"] == "unsure",
    }


def main() -> None:
    """Run the scripts, print a row for each, and the score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    rows = []
    for path in sorted(SCRIPTS.glob("*.py")):
        if options.only not in path.stem:
            continue
        truth = label(path.read_text())
        for _ in range(options.repeats):
            rows.append(judged(watch(path), truth))
            said = f"is {truth['bottleneck']}/{truth['cause']}: {rows[-1]}"
            print(f"{path.stem:28} {said}", flush=True)
    parts = []
    for name in ("class", "cause", "line", "alarm", "miss", "unsure"):
        known = [row[name] for row in rows if row[name] is not None]
        parts.append(f"{name} {sum(known)} of {len(known)}")
    print(", ".join(parts))


if __name__ == "__main__":
    main()
