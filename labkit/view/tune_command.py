"""`labkit tune -- python train.py`: run a script several times, and say what makes it faster."""

from __future__ import annotations

import shlex
import shutil
import tempfile
from pathlib import Path

from labkit.instruments.messages import say
from labkit.process import folders
from labkit.tuning.script_bench import runnable
from labkit.tuning.search_result import Tuning
from labkit.view.running import tune_script

NOTICE = (
    "runs `{}` again and again, with one change each, and interrupts it (as by "
    "Ctrl-C) after some seconds of training: {:.0f} s at most after the first run. What it writes "
    "by then is written {}."
)


def tune_command(command: list[str], budget: float, in_copy: bool, seconds: float = 3.0) -> Tuning:
    """Tune a script in this folder, or in a copy of it that is removed afterwards."""
    place = "in a copy of this folder, which is removed" if in_copy else "here (see --cwd-copy)"
    say(NOTICE.format(shlex.join(runnable(command)), budget, place), by="labkit tune")
    if not in_copy:
        return tune_script(command, seconds=seconds, budget=budget)
    with tempfile.TemporaryDirectory(dir=folders.home()) as scratch:
        copied = Path(scratch, "copy")
        shutil.copytree(Path.cwd(), copied, symlinks=True)
        return tune_script(command, seconds=seconds, budget=budget, cwd=copied)
