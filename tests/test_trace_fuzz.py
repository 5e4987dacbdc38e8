"""Whatever a trace file holds: one `ValueError`, or numbers that add up."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import trace

KINDS = [  # in the order of the classes
    ("kernel", "k"),
    ("gpu_memcpy", "copy"),
    ("gpu_memset", "set"),
    ("user_annotation", "nccl:all_reduce"),
    ("cuda_runtime", "cudaLaunchKernel"),
    ("user_annotation", "enumerate(DataLoader)#_Iter.__next__"),
    ("cpu_op", "aten::relu"),
    ("cpu_op", "ProfilerStep#0"),
]
MARK = len(KINDS) - 1
ON_DEVICE = 3  # the first of them
CATEGORIES = [*(kind for kind, _ in KINDS), "collective_comm", "python_function"]
NAMES = [
    *(name for _, name in KINDS[:MARK]),
    "aten::mm",
    "Optimizer.step#SGD",
    "cudaGraphLaunch",
    "volta_h884gemm",
    "ncclDevKernel_x",
]
STEP = {"ph": "X", "cat": "cpu_op", "name": "ProfilerStep#0", "ts": 0, "dur": 300}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("traces") / "fuzz.json"


def read(path, content):
    """Return the Breakdown, checked for sense, or None after a `ValueError` of one line."""
    path.write_bytes(content)
    try:
        result = trace(path)
    except ValueError as error:
        assert "fuzz.json" in str(error) and "\n" not in str(error)
        return None
    parts = result.class_us.values()
    assert result.steps >= 1 and min(parts) >= 0
    assert sum(parts) == pytest.approx(result.step_us)
    shares = [result.tensor_core_share or 0, *result.busy.values()]
    shares.append(result.host_work_us / result.step_us)
    assert min(shares) >= 0 and max(shares) <= 1 + 1e-9
    json.dumps(result.to_dict(), allow_nan=False)
    assert repr(result) and result._repr_html_()
    return result


JUNK = [None, [], {"a": 1}, "x", True, -5, 1e99, 10**30]
whole = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from(CATEGORIES),
        "name": st.sampled_from(NAMES),
        "pid": st.integers(0, 2),
        "ts": st.integers(0, 500),
        "dur": st.integers(0, 100),
        "args": st.fixed_dictionaries({"correlation": st.integers(0, 5)}),
    }
)


@given(st.lists(whole, max_size=20), st.binary(min_size=1, max_size=300), st.data())
def test_well_formed_events_are_broken_down_cut_anywhere_refused_and_noise_survived(
    path, listed, noise, data
):
    content = json.dumps({"traceEvents": [STEP, *listed]}).encode()
    assert read(path, content) is not None
    for good in (content, gzip.compress(content)):
        assert read(path, good[: data.draw(st.integers(0, len(good) - 1))]) is None
    odd = [
        event | {data.draw(st.sampled_from([*event])): data.draw(st.sampled_from(JUNK))}
        for event in listed
    ]
    read(path, json.dumps({"distributedInfo": odd[:1], "traceEvents": odd}).encode())
    for content in (noise, gzip.compress(noise), b'{"traceEvents": [' + noise):
        read(path, content)


def test_an_exponent_without_end_is_refused(path):
    assert read(path, b'[{"ph": "X", "ts": 0, "dur": 8e999999}]') is None


span = st.tuples(st.integers(0, MARK), st.integers(0, 260), st.integers(0, 90))


@given(st.lists(span, max_size=40))
def test_classes_are_what_painting_every_ns_gives(path, spans):
    """The slow way: a canvas of one cell per ns, painted from the lowest class to the highest."""
    canvas = np.full(400, MARK)  # what no event covers counts as the mark does: other
    steps = np.zeros(400, dtype=bool)
    listed = []
    for kind, start, length in sorted([*spans, (MARK, 20, 100)], reverse=True):
        cat, name = KINDS[kind]
        times = {"ts": start / 1000, "dur": length / 1000}
        listed.append({"ph": "X", "cat": cat, "name": name, "pid": 1, **times})
        canvas[start : start + length] = kind
        if kind == MARK:
            steps[start : start + length] = True
    result = read(path, json.dumps(listed).encode())
    idle = result.idle.values()
    painted = np.bincount(canvas[steps], minlength=len(KINDS))
    us_to_ns = 1000 * result.steps
    parts = [round(us * us_to_ns) for us in result.class_us.values()]
    assert parts == painted.tolist()
    if result.gpu_utilization is not None:
        assert min(idle) >= 0 and round(sum(idle) * us_to_ns) == painted[ON_DEVICE:].sum()
        assert result.gpu_utilization == pytest.approx(painted[0] / painted.sum())
