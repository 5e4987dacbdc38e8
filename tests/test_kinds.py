"""Of which kind the work at a sampled place is: at calls and at operations."""

import linecache
import sys
import sysconfig

import pytest
import torch

from labkit.bench import kinds
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


@pytest.mark.parametrize(
    "module, asks, kind, without_gpu",
    [
        ("torch.utils.tensorboard._convert_np", "x.cpu()", "sync", "logging"),
    ],
)
@pytest.mark.parametrize("on_gpu", [True, False])
def test_what_a_package_asks_of_a_tensor_on_a_gpu_is_the_gpus(
    module, asks, kind, without_gpu, on_gpu, monkeypatch
):
    monkeypatch.setattr(kinds, "is_gpu_in_use", lambda: on_gpu)
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


def test_the_bytes_of_a_batch_are_those_of_all_its_large_arrays():
    views = [torch.zeros(4, 100), torch.zeros(4, 100)]
    largest, places = large_arrays({"views": views, "labels": torch.zeros(4)})
    assert largest is views[0]
    size = bytes_along(places)
    assert size({"views": views}) == 2 * 4 * 100 * 4 and size({"views": views[:1]}) == 0
