"""Of which kind the work at a sampled place is: at calls, at operations, and where a GPU waits."""

import dis
import linecache
import sys
import sysconfig
import textwrap
from types import ModuleType, SimpleNamespace

import pytest
import torch

from labkit.bench import kinds, stack
from labkit.bench.batch_contents import bytes_along, large_arrays
from labkit.bench.places import Places

needs_columns = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="its instructions have no columns"
)


def looked_at(answer):
    """Return a method that has the stack looked at, and gives an answer."""

    def method(self):
        self.look(sys._getframe(1))
        return answer

    return method


class Tensor:
    """What counts as a tensor, and has the stack looked at where it is read."""

    __module__ = "torch"
    is_cpu = False
    dtype = torch.int64
    shape = ()
    cpu = detach = isnan = looked_at(None)

    def __init__(self, look):
        self.look = look

    def __lt__(self, other):
        return self

    __contains__ = __getitem__ = __lt__

    def __bool__(self):
        return False

    def isfinite(self):
        return self


@pytest.fixture(autouse=True)
def _a_gpu_is_in_use(monkeypatch):
    monkeypatch.setattr(stack, "is_gpu_in_use", lambda: True)


@pytest.mark.parametrize(
    "module, asks, kind, without_gpu",
    [
        ("torch.utils.tensorboard._convert_np", "x.cpu()", "sync", "logging"),
        ("transformers.stub", "x.isnan()", "torch", "library"),  # whether a loss is finite
    ],
)
@pytest.mark.parametrize("on_gpu", [True, False])
def test_what_a_package_asks_of_a_tensor_on_a_gpu_is_the_gpus(
    module, asks, kind, without_gpu, on_gpu, monkeypatch
):
    monkeypatch.setattr(Tensor, "is_cpu", not on_gpu)
    file = f"{sysconfig.get_path('purelib')}/{module}.py"  # stands with the other packages
    source = f"def called(x):\n    {asks}\n"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    names = {"__name__": module}
    exec(compile(source, file, "exec"), names)

    def loop(loss):
        names["called"](loss)

    places = Places(None)
    places.loop = loop.__code__
    loop(Tensor(places.number_of))
    (place,) = places.fresh.values()
    assert place.kind == (kind if on_gpu else without_gpu)


def test_comparisons_and_indices_of_tensors_are_not_of_python():
    x = torch.ones(4, device="meta")  # as on a GPU, what is in it is not in RAM
    mask = x > 0.5
    scores = torch.ones(4)
    rows = {"a": 1}
    operations = {
        "x[mask]": "torch",
        "x < 0.5": "torch",
        "-x": "torch",
        "x.to('cpu')": "sync",
        "x.to(torch.device('meta'))": "copy",
        "rows['a']": "python",
        "scores[2]": "python",  # of a loop over what is in RAM
        "x is None": "python",
    }
    for text, kind in operations.items():
        file = f"<an operation: {text}>"
        linecache.cache[file] = (len(text), None, [text], file)
        code = compile(text, file, "eval")
        *_, operation, _ = dis.get_instructions(code)
        frame = SimpleNamespace(
            f_code=code,
            f_lasti=operation.offset,
            f_lineno=1,
            f_globals={"torch": torch},
            f_locals={"x": x, "mask": mask, "rows": rows, "scores": scores},
            f_builtins={},
        )
        assert kinds.kind_and_call(frame)[0] == kind, text


class Probe:
    """What a quick call asks; the stack is looked at meanwhile."""

    __module__ = "builtins"
    __len__ = looked_at(0)
    __str__ = looked_at("")

    def __init__(self, look):
        self.look = look


def entered(called, caller):
    """Return the frame of a function as it is entered."""
    entry = next(each for each in dis.get_instructions(called) if each.opname == "RESUME")
    return SimpleNamespace(
        f_code=called.__code__,
        f_lasti=entry.offset,
        f_lineno=1,
        f_back=caller,
        f_globals={"__name__": called.__module__},
    )


def place_in(body, is_late=True):
    """Return the place of the one stack that is looked at while lines of a loop run."""
    places = Places(None)

    def look(frame):
        places.number_of(frame, is_late)

    def own(value=0):
        look(entered(own, sys._getframe(1)))

    def slow():
        look(sys._getframe())

    clocks = ModuleType("time")
    clocks.perf_counter = lambda: look(sys._getframe(1))
    clocks.perf_counter.__module__ = "time"
    head = "def loop(loss, x, mask, index, best, probe, own, slow, other, time):\n"
    text = head + textwrap.indent(body, "    ")
    file = f"<loop {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    made = {}
    exec(compile(text, file, "exec"), made)
    places.loop = made["loop"].__code__
    loss, x, mask, index = (Tensor(look) for _ in range(4))
    mask.dtype = torch.bool
    made["loop"](loss, x, mask, index, 0.5, Probe(look), own, slow, lambda: None, clocks)
    (place,) = places.fresh.values()
    return place


CONDITION = "if loss < best: best = 1\n"


@needs_columns
@pytest.mark.parametrize(
    "body, waits",
    [
        (CONDITION + "own()", "loss < best"),
        (CONDITION + "len(probe)", "loss < best"),
        (CONDITION + "print(probe)", "loss < best"),
        (CONDITION + "time.perf_counter()", "loss < best"),
        (CONDITION + "loss.detach()", "loss < best"),
        (CONDITION + "n = len(()); isinstance(n, int); own()", "loss < best"),
        (f"if best:\n    {CONDITION}else: other()\nown()", "loss < best"),
        ("if loss: best = 1\nown()", "loss"),
        ("y = x[mask]\nown()", "x[mask]"),
        ("y = not loss\nown()", "not loss"),
        ("y = best in loss\nown()", "best in loss"),
        ("if (loss < best).isfinite(): best = 1\nown()", "(loss < best).isfinite()"),
        ("y = x[index]\nown()", ""),
        ("if loss is None: best = 1\nown()", ""),
        ("if x.shape == 3: best = 1\nown()", ""),
        ("if isinstance(x, int): best = 1\nown()", ""),
        (CONDITION + "other()\nown()", ""),  # a call between has handled the signal
        (CONDITION + "slow()", ""),  # in the midst of it
    ],
)
def test_a_wait_for_a_value_on_a_gpu_is_told_at_what_comes_next(body, waits, monkeypatch):
    place = place_in(body)
    assert (place.kind == "sync") == bool(waits)
    assert not waits or place.call == waits
    monkeypatch.setattr(Tensor, "is_cpu", True)
    assert place_in(body).kind != "sync"


@needs_columns
def test_a_stack_that_is_looked_at_from_beside_is_where_it_stands():
    assert place_in(CONDITION + "print(probe)", is_late=False).kind == "logging"
    assert place_in(CONDITION + "own()", is_late=False).kind == "python"


def test_the_bytes_of_a_batch_are_those_of_all_its_large_arrays():
    views = [torch.zeros(4, 100), torch.zeros(4, 100)]
    largest, places = large_arrays({"views": views, "labels": torch.zeros(4)})
    assert largest is views[0]
    size = bytes_along(places)
    assert size({"views": views}) == 2 * 4 * 100 * 4 and size({"views": views[:1]}) == 0


def test_without_a_gpu_it_makes_no_place_whether_a_stack_was_seen_late(monkeypatch):
    frame = sys._getframe()
    monkeypatch.setattr(stack, "is_gpu_in_use", lambda: False)
    places = Places(None)
    assert [places.number_of(frame, late) for late in (True, False)] == [0, 0]
