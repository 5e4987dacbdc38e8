"""Of which kind the work at a sampled place is: at calls, at operations, and where a GPU waits."""

import dis
import linecache
import sys
import sysconfig
from types import ModuleType, SimpleNamespace

import pytest
import torch

from labkit.bench import instructions, kinds, stack
from labkit.bench.batch_contents import bytes_along, large_arrays
from labkit.bench.places import Places

needs_columns = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="its instructions have no columns"
)


class Tensor:
    """What counts as a tensor, and notes where it is read."""

    __module__ = "torch"
    is_cpu = False

    def __init__(self, places):
        self.places = places

    def cpu(self):
        self.places.number_of(sys._getframe(1))

    isnan = cpu
    dtype = torch.int64
    shape = ()

    def __lt__(self, other):
        return self

    def __bool__(self):
        return False

    def __getitem__(self, index):
        return self

    def isfinite(self):
        return self

    def detach(self):
        self.look(sys._getframe(1))


@pytest.fixture(autouse=True)
def _a_gpu_is_in_use(monkeypatch):
    monkeypatch.setattr(stack, "is_gpu_in_use", lambda: True)


@pytest.fixture(params=[True, False], ids=["gpu", "cpu"])
def gpu(request, monkeypatch):
    monkeypatch.setattr(Tensor, "is_cpu", not request.param)
    return request.param


def places_of(loop):
    places = Places(None)
    places.loop = loop.__code__
    loop(Tensor(places))
    return list(places.fresh.values())


def in_a_package(name, source):
    """Return the globals of a module of a package, run from a file that stands with the others."""
    file = f"{sysconfig.get_path('purelib')}/{name.replace('.', '/')}.py"
    made = {"__name__": name, "torch": torch}
    exec(compile(source, file, "exec"), made)
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    return made


def test_a_logger_that_reads_a_tensor_of_a_gpu_waits_for_it(gpu):
    source = "def make_np(x):\n    return x.cpu()\n"
    make_np = in_a_package("torch.utils.tensorboard._convert_np", source)["make_np"]

    def loop(loss):
        make_np(loss)

    (place,) = places_of(loop)
    assert place.kind == ("sync" if gpu else "logging")
    assert place.call == "make_np()"


def test_a_trainer_that_asks_whether_the_loss_is_finite_trains(gpu):
    inner = in_a_package("transformers.stub", "def inner(loss):\n    loss.isnan()\n")["inner"]

    def loop(loss):
        inner(loss)

    (place,) = places_of(loop)
    assert place.kind == ("torch" if gpu else "library")


def test_comparisons_and_indices_of_tensors_are_not_of_python():
    x = torch.ones(4, device="meta")  # as on a GPU, what is in it is not in RAM
    mask = x > 0.5
    scores = torch.ones(4)
    rows = {"a": 1}
    code = {
        "x[mask]": "torch",
        "x[mask] = 0.0": "torch",
        "x < 0.5": "torch",
        "0.5 < x": "torch",
        "-x": "torch",
        "x += x": "torch",
        "x.to('cpu')": "sync",
        "x.to(torch.device('meta'))": "copy",
        "rows['a']": "python",
        "scores[2]": "python",  # of a loop over what is in RAM
        "scores[2] > 0.5": "python",
        "x is None": "python",
    }
    for text, kind in code.items():
        file = f"<an operation: {text}>"
        linecache.cache[file] = (len(text), None, [text], file)
        steps = [
            step
            for step in dis.get_instructions(compile(text, file, "exec"))
            if step.opname.startswith(
                ("BINARY", "STORE_SUBSCR", "COMPARE", "UNARY", "CALL", "IS_OP")
            )
        ]
        frame = SimpleNamespace(
            f_code=compile(text, file, "exec"),
            f_lasti=steps[-1].offset,
            f_lineno=1,
            f_globals={"torch": torch},
            f_locals={"x": x, "mask": mask, "rows": rows, "scores": scores},
            f_builtins={},
        )
        assert kinds.kind_and_call(frame)[0] == kind, text


@needs_columns
def test_the_instructions_of_this_python_are_told_apart():
    def work(loop, mask, x):
        for _ in loop:
            x -= not mask
            if x in mask:
                mask[x] = loop(*x, key=x[0])

    told = {instructions.does(step) for step in dis.get_instructions(work)}
    known = set(instructions.PATTERNS) - {"precall"}
    assert told - {None, "precall"} == known


class Probe:
    """What a quick call asks; the stack is looked at meanwhile."""

    __module__ = "builtins"

    def __init__(self, look):
        self.look = look

    def __len__(self):
        self.look(sys._getframe(1))
        return 0

    def __str__(self):
        self.look(sys._getframe(1))
        return ""


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
    vars(clocks)["perf_counter"] = lambda: look(sys._getframe(1))
    clocks.perf_counter.__module__ = "time"
    text = "def loop(loss, x, mask, index, best, probe, own, slow, other, time):\n"
    text += "".join(f"    {line}\n" for line in body)
    file = f"<loop {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    made = {}
    exec(compile(text, file, "exec"), made)
    places.loop = made["loop"].__code__
    loss, x, mask, index = (Tensor(places) for _ in range(4))
    loss.look = look
    mask.dtype = torch.bool
    made["loop"](loss, x, mask, index, 0.5, Probe(look), own, slow, lambda: None, clocks)
    (place,) = places.fresh.values()
    return place


CONDITION = ["if loss < best:", "    best = 1"]
INDENTED = [f"    {line}" for line in CONDITION]


@needs_columns
@pytest.mark.parametrize(
    "line",
    [
        "own()",
        "len(probe)",
        "print(probe)",
        "time.perf_counter()",
        "loss.detach()",
        "n = len(()); isinstance(n, int); own()",
    ],
)
def test_a_wait_in_a_condition_is_told_at_what_comes_next(line, gpu):
    place = place_in([*CONDITION, line])
    if gpu:
        assert (place.kind, place.call) == ("sync", "loss < best")
        assert (place.function, place.line) == ("loop", 2)
    else:
        assert place.kind != "sync"


@needs_columns
@pytest.mark.parametrize(
    "body, waits",
    [
        (["if loss:", "    best = 1", "own()"], "loss"),
        (["y = x[mask]", "own()"], "x[mask]"),
        (["if (loss < best).isfinite():", "    best = 1", "own()"], "(loss < best).isfinite()"),
        ([*CONDITION, "elif best:", "    other() if best > 1 else None", "own()"], "loss < best"),
        (["if best:", *INDENTED, "else:", "    other()", "own()"], "loss < best"),
        (["y = x[index]", "own()"], ""),
        (["if loss is None:", "    best = 1", "own()"], ""),
        (["if loss is not x:", "    best = 1", "own()"], ""),
        (["if x.shape == 3:", "    best = 1", "own()"], ""),
        (["if isinstance(x, int):", "    best = 1", "own()"], ""),
        (["own()"], ""),
        (["print(probe)"], ""),
        ([*CONDITION, "other()", "own()"], ""),  # a call between has handled the signal
        ([*CONDITION, "sorted(probe.look and ())", "own()"], ""),
        ([*CONDITION, "slow()"], ""),  # in the midst of it
    ],
)
def test_only_a_value_on_a_gpu_is_waited_for(body, waits):
    place = place_in(body)
    assert (place.kind == "sync") == bool(waits)
    assert not waits or place.call == waits


@needs_columns
def test_a_stack_that_is_looked_at_from_beside_is_where_it_stands():
    assert place_in([*CONDITION, "print(probe)"], is_late=False).kind == "logging"
    assert place_in([*CONDITION, "own()"], is_late=False).kind == "python"


def test_the_bytes_of_a_batch_are_those_of_all_its_large_arrays():
    views = [torch.zeros(4, 100), torch.zeros(4, 100)]
    batch = {"views": views, "labels": torch.zeros(4)}
    largest, places = large_arrays(batch)
    assert largest is views[0]
    assert bytes_along(places)(batch) == 2 * 4 * 100 * 4
    assert bytes_along(places)({"views": views[:1]}) == 0


def test_without_a_gpu_it_makes_no_place_whether_a_stack_was_seen_late(monkeypatch):
    frame = sys._getframe()
    monkeypatch.setattr(stack, "is_gpu_in_use", lambda: False)
    places = Places(None)
    assert [places.number_of(frame, late) for late in (True, False)] == [0, 0]
