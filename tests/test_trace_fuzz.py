"""Whatever a trace file holds: one `TraceError`, or numbers that add up."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.diagnosis.trace import TraceError, trace
from labkit.diagnosis.trace_steps import TRACE_CLASSES

KINDS = [  # in the order of the classes
    ("kernel", "k"),
    ("gpu_memcpy", "copy"),
    ("gpu_memset", "set"),
    ("user_annotation", "nccl:all_reduce"),
    ("cuda_runtime", "cudaLaunchKernel"),
    ("user_annotation", "enumerate(DataLoader)#_Iter.__next__"),
    ("cpu_op", "aten::relu"),
]
CATEGORIES = [
    *(kind for kind, _ in KINDS),
    "Kernel",
    "Operator",
    "collective_comm",
    "python_function",
    "user_annotation",
]
NAMES = [
    *(name for _, name in KINDS),
    "aten::mm",
    "Optimizer.step#SGD",
    "cudaGraphLaunch",
    "volta_h884gemm",
    "ncclDevKernel_x",
]
STEP = {"ph": "X", "cat": "cpu_op", "name": "ProfilerStep#0", "pid": 0, "ts": 0, "dur": 300}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("traces") / "fuzz.json"


def read(path, content):
    """Return the Breakdown, checked for sense, or None after a `TraceError` of one line."""
    path.write_bytes(content)
    try:
        result = trace(path)
    except TraceError as error:
        assert "fuzz.json" in str(error) and "\n" not in str(error)
        return None
    parts = [getattr(result, f"{name}_us") for name in (*TRACE_CLASSES, "other")]
    assert result.steps >= 1 and min(parts) >= 0
    assert sum(parts) == pytest.approx(result.step_us)
    kinds = ("gpu_utilization", "tensor_core_share")
    for share in (*(getattr(result, kind) or 0 for kind in kinds), *result.busy.values()):
        assert 0 <= share <= 1 + 1e-9
    assert 0 <= result.host_work_us <= result.step_us * (1 + 1e-9)
    if result.gpu_utilization is not None:
        idle = sum(result.idle.values())
        assert min(result.idle.values()) >= 0
        assert idle <= result.step_us * (1 - result.gpu_utilization) * (1 + 1e-9) + 1e-3
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
    read(path, noise)
    read(path, gzip.compress(noise))
    damaged = bytearray(content)
    for byte in noise[:4]:
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = byte
    read(path, bytes(damaged))


@pytest.mark.parametrize("content", [b"[" * 1_000_000, b'[{"ph": "X", "ts": 0, "dur": 8e999999}]'])
def test_nesting_and_exponents_without_end_are_refused(path, content):
    assert read(path, content) is None


spans = st.lists(st.tuples(st.integers(0, 260), st.integers(0, 90)), max_size=6)


@given(st.tuples(*[spans] * len(KINDS)), spans)
def test_classes_are_what_painting_every_ns_gives(path, by_kind, marks):
    """The slow way: a canvas of one cell per ns, painted from the lowest class to the highest."""
    steps = np.zeros(400, dtype=bool)
    listed = []
    for start, length in [*marks, (20, 100)]:
        steps[start : start + length] = True
        listed.append(("cpu_op", "ProfilerStep#1", start, length))
    canvas = np.full(400, len(KINDS))
    busy = np.zeros((len(KINDS), 400), dtype=bool)
    for kind in reversed(range(len(KINDS))):
        for start, length in by_kind[kind]:
            canvas[start : start + length] = kind
            busy[kind, start : start + length] = True
            listed.append((*KINDS[kind], start, length))
    content = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "ts": start / 1000, "dur": length / 1000}
        for cat, name, start, length in listed
    ]
    result = read(path, json.dumps(content).encode())
    painted = np.bincount(canvas[steps], minlength=len(KINDS) + 1)
    parts = [getattr(result, f"{name}_us") for name in (*TRACE_CLASSES, "other")]
    got = [part * result.steps * 1000 for part in parts]
    assert np.round(got).tolist() == painted.tolist()
    if result.gpu_utilization is not None:
        idle = sum(result.idle.values()) * result.steps * 1000
        assert round(idle) == np.sum(steps & ~busy[:3].any(axis=0))
        assert result.gpu_utilization == pytest.approx(np.sum(steps & busy[0]) / np.sum(steps))
