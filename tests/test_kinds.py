"""Of which kind the work at a sampled place is: at calls and at operations."""

import dis
import linecache
import sys
import sysconfig
from types import SimpleNamespace

import pytest
import torch

from labkit.bench import kinds, stack
from labkit.bench.batch_contents import bytes_along, large_arrays
from labkit.bench.places import Places


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


def test_the_bytes_of_a_batch_are_those_of_all_its_large_arrays():
    views = [torch.zeros(4, 100), torch.zeros(4, 100)]
    largest, places = large_arrays({"views": views, "labels": torch.zeros(4)})
    assert largest is views[0]
    size = bytes_along(places)
    assert size({"views": views}) == 2 * 4 * 100 * 4 and size({"views": views[:1]}) == 0
