"""Of which kind the work at a sampled line is: by what it calls, and on whose objects."""

import linecache
import queue
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from labkit.instruments.stack import kind_of_line, text_of


@pytest.mark.parametrize(
    "line, kind",
    [
        ("losses.append(loss.item())", "sync"),
        ("float(loss)", "sync"),
        ("loss.float() + 1", "torch"),
        ("pair[0].to(loss.device)", "copy"),
        ("self.net.weight", "torch"),
        ("print(loss)", "logging"),
        ("time.sleep(0)", "wait"),
        ("numbers.tolist()", "python"),
        ("[n * n for n in range(3)]", "python"),
    ],
)
def test_a_line_is_of_the_kind_that_its_names_tell(line, kind):
    going = suspended_at(line)
    assert kind_of_line(going.gi_frame) == kind


def suspended_at(line, module="__main__"):
    """Return a generator that is at a line of source."""
    source = f"def steps(self, loss, numbers):\n    losses, pair, jobs = made()\n    yield {line}\n"
    linecache.cache["/home/me/steps.py"] = (len(source), None, source.splitlines(True), "")
    made = [], [torch.ones(1)], queue.SimpleQueue()
    names = {"__name__": module, "time": time, "made": lambda: made}
    exec(compile(source, "/home/me/steps.py", "exec"), names)
    model = type("Model", (), {"__module__": "__main__"})()
    model.net = torch.nn.Linear(1, 1)
    going = names["steps"](model, torch.ones(1), np.ones(2))
    next(going)
    return going


def test_no_text_of_a_line_is_kept_be_it_one_of_many_lines():
    lines = ["ask('secret')\n", 'ask(f"""secret\n', "{secret}\n", 'secret""")\n', "ask(1)\n"]
    linecache.cache["/home/me/ask.py"] = (1, None, lines, "")
    code = SimpleNamespace(co_filename="/home/me/ask.py")
    frames = [SimpleNamespace(f_code=code, f_lineno=number) for number in range(1, 6)]
    assert [text_of(frame) for frame in frames] == ["ask('...')", "", "", "", "ask(1)"]
