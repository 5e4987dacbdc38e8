"""Whatever a trace file holds: one `TraceError`, or numbers that add up."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.analysis import trace_file
from labkit.analysis.trace import CLASSES, TraceError, trace

quick = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)

CATEGORIES = [
    "kernel", "Kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "Operator",
    "user_annotation", "collective_comm", "python_function",
]  # fmt: skip
NAMES = [
    "ProfilerStep#1", "aten::mm", "enumerate(DataLoader)#_Iter.__next__",
    "nccl:all_reduce", "Optimizer.step#SGD", "cudaLaunchKernel", "cudaGraphLaunch",
    "volta_h884gemm", "ncclDevKernel_x",
]  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("traces") / "fuzz.json"


def read(path, content):
    """Return the Breakdown, checked for sense, or None after a `TraceError` of one line."""
    path.write_bytes(content)
    try:
        result = trace(path)
    except TraceError as error:
        assert "fuzz.json" in str(error)
        assert "\n" not in str(error)
        return None
    parts = [getattr(result, f"{name}_us") for name in (*CLASSES, "other")]
    assert min(parts) >= 0
    assert sum(parts) == pytest.approx(result.step_us)
    assert result.steps >= 1
    for kind in ("gpu_utilization", "tensor_core_share", "copy_overlap_share"):
        assert 0 <= (getattr(result, kind) or 0) <= 1 + 1e-9
    if result.gpu_utilization is not None:
        idle = sum(result.idle.values())
        assert min(result.idle.values()) >= 0
        assert idle <= result.step_us * (1 - result.gpu_utilization) * (1 + 1e-9) + 1e-3
    json.dumps(result.to_dict(), allow_nan=False)
    assert repr(result) and result._repr_html_()
    return result


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
number = st.integers(-(10**3), 10**4) | st.floats(-1e3, 1e4) | st.sampled_from([2**53, 10**15])


def mostly(good):
    return st.one_of(good, good, good, good, good, good, junk)


def mapping(**fields):
    return mostly(st.fixed_dictionaries({name: mostly(good) for name, good in fields.items()}))


events = mapping(
    ph=st.sampled_from("XXXXXif"),
    cat=st.sampled_from(CATEGORIES),
    name=st.sampled_from(NAMES),
    pid=st.integers(0, 3),
    ts=number,
    dur=number,
    args=mapping(**{"correlation": number, "External id": number}),
)


@quick
@given(
    st.lists(events, max_size=30), st.dictionaries(st.sampled_from(["distributedInfo", "x"]), junk)
)
def test_any_events(path, listed, beside):
    read(path, json.dumps({**beside, "traceEvents": listed}).encode())


whole = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from(CATEGORIES),
        "name": st.sampled_from(NAMES[1:]),
        "pid": st.integers(0, 2),
        "ts": st.integers(0, 500),
        "dur": st.integers(0, 100),
        "args": st.fixed_dictionaries({"correlation": st.integers(0, 5)}),
    }
)
step = {"ph": "X", "cat": "cpu_op", "name": "ProfilerStep#0", "pid": 0, "ts": 0, "dur": 300}


@quick
@given(st.lists(whole, max_size=20), st.data())
def test_well_formed_events_are_broken_down_and_cut_anywhere_refused(path, listed, data):
    content = json.dumps({"traceEvents": [step, *listed]}).encode()
    assert read(path, content) is not None
    assert read(path, content[: data.draw(st.integers(0, len(content) - 1))]) is None
    packed = gzip.compress(content)
    assert read(path, packed[: data.draw(st.integers(0, len(packed) - 1))]) is None


@quick
@given(st.lists(whole, max_size=4), st.binary(min_size=1, max_size=300), st.data())
def test_any_and_damaged_bytes(path, listed, noise, data):
    read(path, noise)
    read(path, gzip.compress(noise))
    content = bytearray(json.dumps({"traceEvents": [step, *listed]}).encode())
    for byte in noise[:4]:
        content[data.draw(st.integers(0, len(content) - 1))] = byte
    read(path, bytes(content))


@quick
@given(st.lists(whole, max_size=6), st.integers(1, 40), st.sampled_from(["é✓𝄞", "a"]))
def test_where_the_pieces_of_a_file_end_makes_no_difference(path, listed, piece, name):
    kernel = {**step, "cat": "kernel", "name": name, "args": {"x": "WORD"}}
    text = json.dumps([step, kernel, *listed], ensure_ascii=False).replace('"WORD"', "-inf")
    at_once = read(path, text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_file, "CHUNK", piece)
        assert read(path, text.encode()) == at_once


spans = st.lists(st.tuples(st.integers(0, 260), st.integers(0, 90)), max_size=6)
KINDS = [
    ("kernel", "k"),
    ("gpu_memcpy", "copy"),
    ("gpu_memset", "set"),
    ("user_annotation", "nccl:all_reduce"),
    ("cuda_runtime", "cudaLaunchKernel"),
    ("user_annotation", "enumerate(DataLoader)#_Iter.__next__"),
    ("cpu_op", "aten::relu"),
]


@quick
@given(st.tuples(*[spans] * len(KINDS)), spans)
def test_classes_are_what_painting_every_ns_gives(path, by_kind, marks):
    """The slow way: a canvas of one cell per ns, painted from the lowest class to the highest."""
    step_canvas = np.zeros(400, dtype=bool)
    listed = []
    for start, length in [*marks, (20, 100)]:
        step_canvas[start : start + length] = True
        listed.append(("cpu_op", "ProfilerStep#1", start, length))
    canvas = np.full(400, len(KINDS))
    for kind in reversed(range(len(KINDS))):
        for start, length in by_kind[kind]:
            canvas[start : start + length] = kind
            listed.append((*KINDS[kind], start, length))
    content = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "ts": start / 1000, "dur": length / 1000}
        for cat, name, start, length in listed
    ]
    result = read(path, json.dumps(content).encode())
    painted = np.bincount(canvas[step_canvas], minlength=len(KINDS) + 1)
    got = [getattr(result, f"{name}_us") * result.steps * 1000 for name in (*CLASSES, "other")]
    assert np.round(got).tolist() == painted.tolist()
    if result.gpu_utilization is not None:
        busy = np.zeros((3, 400), dtype=bool)
        for kind in range(3):
            for start, length in by_kind[kind]:
                busy[kind, start : start + length] = True
        idle = sum(result.idle.values()) * result.steps * 1000
        assert round(idle) == np.sum(step_canvas & ~busy.any(axis=0))
        share = np.sum(step_canvas & busy[0]) / np.sum(step_canvas)
        assert result.gpu_utilization == pytest.approx(share)
