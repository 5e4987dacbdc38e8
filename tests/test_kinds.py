"""Of which kind the work at a sampled place is: at calls, at operations, and where a GPU waits."""

import dis
import linecache
import sys
import sysconfig
from types import SimpleNamespace

import pytest
import torch

from labkit.bench import kinds
from labkit.bench.batch_contents import bytes_along, large_arrays
from labkit.bench.places import Places, Stack, _work


class Tensor:
    """What counts as a tensor, and notes where it is read."""

    __module__ = "torch"
    is_cpu = False

    def __init__(self, places):
        self.places = places

    def cpu(self):
        self.places.number_of(sys._getframe(1))

    isnan = cpu

    def __lt__(self, other):
        return False


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


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its instructions have no columns")
def test_a_call_behind_a_condition_on_a_tensor_stands_for_the_wait_of_the_condition(gpu):
    def loop(loss):
        def debug():
            """Be interrupted as Python enters a function of a logger's."""
            entry = next(each for each in dis.get_instructions(debug) if each.opname == "RESUME")
            called = SimpleNamespace(
                f_code=debug.__code__,
                f_lasti=entry.offset,
                f_lineno=1,
                f_back=sys._getframe(1),
                f_globals={"__name__": "logging"},
            )
            seen = Stack([called], called.f_back, called.f_back, grad=True)
            found.append(_work(called, seen))

        best = 0.5
        if loss < best:
            best = loss.detach()
        debug()
        if best < 0.1:
            best += 1
        debug()

    found = []
    places_of(loop)
    assert found == [
        ("sync", "loss < best") if gpu else ("logging", "debug()"),
        ("logging", "debug()"),
    ]


def test_the_bytes_of_a_batch_are_those_of_all_its_large_arrays():
    views = [torch.zeros(4, 100), torch.zeros(4, 100)]
    batch = {"views": views, "labels": torch.zeros(4)}
    largest, places = large_arrays(batch)
    assert largest is views[0]
    assert bytes_along(places)(batch) == 2 * 4 * 100 * 4
    assert bytes_along(places)({"views": views[:1]}) == 0
