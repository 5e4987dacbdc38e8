"""Score the diagnosis on small training scripts as users write them (maintain/scripts).

    python maintain/benchmarks/user_loops.py [--only NAME] [--rows F.json]

Each script has one planted cause or none, stated in its head (`# bottleneck: host`, `# cause:
logging`); the lines to blame end in `# CAUSE`. No threshold was set on any of them: they are the
held-out half of the scripts by that author, whose other half set the thresholds. A script runs
under `labkit watch -- python SCRIPT`, its comments removed so that nothing in it tells. Right
means: the bottleneck is the one stated; the cause likewise; one of the first two lines of the first
finding is marked. A false alarm is a healthy script with a finding, a miss a planted one that is
called `compute`.

With WATCHED_RECORDS=DIR in the environment each record is kept there, as `tests/watched` has them.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from paired import rows_of

from labkit.results.privacy import for_others
from labkit.text import with_texts

SCRIPTS = Path(__file__).parents[1] / "scripts"
COMMENT = re.compile(r" *#.*")
HEAD = re.compile(r"^# (bottleneck|cause): (\S.*)$", re.M)


def watch(name: str, text: str) -> dict:
    """Return what `labkit watch` says of a script, run as a user would, without its comments."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_text(COMMENT.sub("", text))
        watch = [sys.executable, "-m", "labkit", "watch", "--json", "--", sys.executable, name]
        done = subprocess.run(watch, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode or not done.stdout:
        raise RuntimeError(f"{name}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    if folder := os.environ.get("WATCHED_RECORDS"):
        lines = Path(found["record"], "events.jsonl").read_bytes().splitlines()
        events = [with_texts(json.loads(line), for_others, str) for line in lines]
        kept = gzip.compress("\n".join(map(json.dumps, events)).encode(), mtime=0)
        Path(folder, f"{Path(name).stem}.jsonl.gz").write_bytes(kept)
    return found


def judged(name: str) -> dict:
    """Watch a script; return what was said of it, and what is right in that."""
    text = (SCRIPTS / name).read_text()
    truth = dict(HEAD.findall(text))
    marked = {n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# CAUSE")}
    found = watch(name, text)
    said = found["bottleneck"]
    first = (found.get("findings") or [{}])[0]
    lines = [line["line"] for line in first.get("lines", ())[:2]]
    healthy = truth["bottleneck"] == "compute"
    return {
        "is": "{bottleneck}/{cause}".format(**truth),
        "said": f"{said}/{first.get('cause', '')}",
        "lines": lines,
        "class": said == truth["bottleneck"],
        "cause": None if healthy else first.get("cause") == truth["cause"],
        "line": not marked.isdisjoint(lines) if marked else None,
        "alarm": healthy and said not in ("compute", "unsure"),
        "miss": not healthy and said == "compute",
        "unsure": said == "unsure",
    }


if __name__ == "__main__":
    rows = rows_of(__doc__, sorted(path.name for path in SCRIPTS.glob("*.py")), judged)
    for what in ("class", "cause", "line", "alarm", "miss", "unsure"):
        known = rows[what].dropna()
        print(f"{what} {known.sum()} of {len(known)}")
