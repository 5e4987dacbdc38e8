"""`python -m labkit grade`: submitted notebooks, their challenges run again and checked."""

from __future__ import annotations

import argparse
import json
import sys

EPILOG = """\
Only the challenge cells are run again, each challenge in a clean notebook with a kernel of its own,
in a copy of the notebook's folder, with limits. What goes wrong costs a submission its own rows:
  passed, not yet, no answer, crashed, timed out, not a notebook
Submissions run with your rights: grade strangers' code in a container.

The exit code is 0 where everything was graded, 2 where a file was not a notebook (the others are
graded). --json prints {"rows": [{notebook, challenge, verdict, passed, why, lines}], "bad": N}.

examples:
  labkit grade alice.ipynb bob.ipynb
  labkit grade submitted/ --only 02-feed --json      nbgrader's folder: all students' notebooks
"""


def arguments(sub: argparse.ArgumentParser) -> None:
    """Add what `labkit grade` takes to its parser."""
    sub.add_argument("notebooks", nargs="+", metavar="NOTEBOOK", help="a notebook, or a folder")
    sub.add_argument("--only", metavar="KEY", action="append",
                     help="grade this challenge, as 02-feed (repeatable)")  # fmt: skip
    about = "seconds for a challenge's cells, and for each run of its check (default 60)"
    sub.add_argument("--timeout", metavar="S", type=float, default=60.0, help=about)


def run(options: argparse.Namespace) -> int:
    """`labkit grade`; returns 2 where a file was no notebook."""
    from labkit.course.grading import grade

    def progress(done: int, total: int, name: str) -> None:
        shown = "".join(c if c.isprintable() else " " for c in name)
        print(f"labkit: {done} of {total} notebooks graded; {shown}", file=sys.stderr)

    grades = grade(
        options.notebooks, only=options.only, timeout_s=options.timeout, progress=progress
    )
    print(json.dumps(grades.to_dict(), allow_nan=False) if options.json else grades)
    return 2 if grades.bad else 0
