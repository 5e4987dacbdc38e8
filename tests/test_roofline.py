"""The roofline: pure arithmetic on measurements, live or recorded, and its figure."""

import json

import pytest
from matplotlib.text import Text

import labkit as lk
from labkit.analysis.datasheets import CARDS, card
from labkit.experiments.roofline_points import Placed, Roof, roofline
from labkit.show.style import png_of

SECONDS = 0.5  # of every point in the made-up record: rates follow from FLOPs and bytes
ROOF = Roof(gb_per_s=100.0, tflop_per_s={"fp32": 2.0, "fp16": 8.0})


def write_record(folder, points, name="roofline", machine=None):
    """Write a record of an experiment that nobody ran: the numbers are chosen, not measured."""
    here = {
        "device": "cuda:0",
        "kind": "gpu",
        "name": "Some Card",
        "cpu_cores": 8,
        "versions": {"torch": "2"},
    }
    spec = {"version": 1, "run": "20260101-000000-abcdef", "experiment": name, "params": {}}
    events = [
        {"event": "spec", **spec, "pipeline": {"device": "auto"}},
        {"event": "machine", **here, **(machine or {})},
        *({"event": "measurement", "case": {}, "values": {}, **point} for point in points),
        {"event": "skipped", "what": "tf32", "why": "not on <this> card"},
        {"event": "done"},
        {"event": "end", "code": 0, "stop": None},
    ]
    lines = [json.dumps({"t_ns": i, **event}) for i, event in enumerate(events)]
    (folder / "events.jsonl").write_text("\n".join(lines) + "\n")
    return lk.load(folder)


def point(of, flops=None, bytes=None, **case):
    return {"of": of, "flops": flops, "bytes": bytes, "seconds": [SECONDS] * 5, "case": case}


def usual_points():
    """Roofs of 100 GB/s, 2 TFLOP/s (fp32) and 8 TFLOP/s (fp16), and four operations."""
    return [
        point("copy", bytes=50e9, roof="bandwidth"),
        point("scale in place", bytes=40e9, roof="bandwidth"),
        {"of": "arrays", "seconds": [], "values": {"past_cache": True}},
        point("matmul", 1e12, 1e9, format="fp32", n=4096, roof="compute"),
        point("matmul", 4e12, 1e9, format="fp16", n=4096, roof="compute"),
        point("matmul", 1e10, 1e10, format="fp32", n=64),
        point("add", 45e9 / 12, 45e9, format="fp32"),
        point("convolution", 8e11, 1e9, format="fp32"),
    ]


@pytest.fixture
def line(tmp_path):
    return roofline(write_record(tmp_path, usual_points()))


def test_the_ridge_is_where_both_roofs_are_equally_high():
    for kind in ("fp32", "fp16"):
        ridge = ROOF.ridge(kind)
        assert ROOF.gb_per_s * ridge / 1e3 == pytest.approx(ROOF.tflop_per_s[kind])
        assert ROOF.attainable(ridge, kind) == pytest.approx(ROOF.tflop_per_s[kind])
    assert ROOF.ridge("fp32") == pytest.approx(20)
    assert ROOF.ridge("fp16") == pytest.approx(80)


def test_left_of_the_ridge_memory_is_the_limit_and_right_of_it_compute():
    assert ROOF.regime(10, "fp32") == "memory" and ROOF.regime(30, "fp32") == "compute"
    assert ROOF.regime(30, "fp16") == "memory"  # a faster format's ridge lies further right
    assert ROOF.attainable(10, "fp32") == pytest.approx(1.0)
    assert ROOF.attainable(1000, "fp32") == pytest.approx(2.0)


def test_a_record_is_read_and_its_operations_placed(line):
    assert line.recorded and line.roof.gb_per_s == pytest.approx(100)
    assert line.roof.tflop_per_s == pytest.approx({"fp32": 2.0, "fp16": 8.0})
    add = line.one("add")
    assert add.regime == "memory" and add.intensity == pytest.approx(1 / 12)
    assert add.of_roof == pytest.approx(0.9)
    assert line.one("convolution").regime == "compute"
    assert line.one("convolution").of_roof == pytest.approx(0.8)
    assert line.one("matmul", n=64, format="fp32").of_roof < 0.25
    assert "RECORDED on Some Card" in repr(line)


def test_far_below_both_roofs_neither_is_blamed():
    low = Placed("matmul", "fp32", 1.0, 0.001, 0.1, "memory")
    near = Placed("add", "fp32", 1.0, 0.09, 0.1, "memory")
    assert "overhead" in low.verdict and near.verdict == "memory bound"


def test_the_fastest_product_of_a_format_is_its_roof(tmp_path):
    points = [*usual_points(), point("matmul", 1.5e12, 1e9, format="fp32", n=512)]
    assert roofline(write_record(tmp_path, points)).roof.tflop_per_s["fp32"] == pytest.approx(3.0)


def test_the_fastest_pass_is_the_roof_of_memory(tmp_path):
    points = [*usual_points(), point("scale in place", bytes=75e9, roof="bandwidth")]
    assert roofline(write_record(tmp_path, points)).roof.gb_per_s == pytest.approx(150)


def test_a_missing_roof_is_an_error_that_says_which(tmp_path):
    with pytest.raises(LookupError, match="no pass over memory"):
        roofline(write_record(tmp_path, usual_points()[3:]))
    with pytest.raises(LookupError, match="no matrix product"):
        roofline(write_record(tmp_path, usual_points()[:3]))


def test_another_experiment_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no roofline"):
        roofline(write_record(tmp_path, [], name="copies"))
    with pytest.raises(ValueError, match="no roofline"):
        roofline("roofline")


def test_an_operation_without_a_roof_or_a_count_is_left_out(tmp_path):
    more = [point("add", 1e9, 1e9, format="fp8"), point("softmax", None, 1e9, format="fp32")]
    placed = roofline(write_record(tmp_path, [*usual_points(), *more])).points
    assert len(placed) == 5 and "softmax" not in {p.name for p in placed}


def test_only_cards_with_a_cited_data_sheet_have_a_peak():
    assert card("Some Card") is None
    assert card("NVIDIA GeForce RTX 4090 Laptop GPU") is None
    assert card("NVIDIA GeForce RTX 4090 D") is None
    assert card("Intel(R) Xeon(R) Processor") is None
    assert card("NVIDIA H200").gb_per_s == 4800
    assert card("Tesla T4").name == "T4"
    assert card("NVIDIA A100-SXM4-80GB").gb_per_s == 2039
    assert card("NVIDIA A100-SXM4-40GB").gb_per_s == 1555
    assert card("NVIDIA H100 80GB HBM3").name == "H100 SXM"
    assert card("NVIDIA H100 PCIe").name == "H100 PCIe"
    assert all(found.source.startswith("https://") for _, found in CARDS)


def texts(figure):
    everything = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        everything += [text.get_text() for text in axes.texts]
        everything += [text.get_text() for text in axes.get_legend().get_texts()]
    return "\n".join(everything)


def dashed(figure):
    return [line for line in figure.axes[0].lines if line.get_linestyle() == "--"]


def test_the_figure_of_a_recorded_roofline_says_so_and_names_the_machine(line):
    figure = line.plot()
    assert "RECORDED on Some Card" in texts(figure)
    assert "tf32: not on <this> card" in texts(figure)
    assert "ridge at 20 FLOP/byte" in texts(figure)
    assert {"add", "convolution", "matmul 64"} <= {t.get_text() for t in figure.axes[0].texts}
    assert png_of(figure).startswith(b"\x89PNG")
    assert not dashed(figure)


def test_a_known_card_has_its_promise_dashed_with_the_source(tmp_path):
    measured = write_record(tmp_path, usual_points(), machine={"name": "NVIDIA H200"})
    figure = measured.plot()
    assert dashed(figure)
    assert "https://www.nvidia.com/en-us/data-center/h200/" in texts(figure)


def test_no_two_labels_of_the_figure_overlap(tmp_path):
    sizes = [
        point("matmul", 2.0 * n**3 * s, 12.0 * n**2 * s, format=kind, n=n)
        for kind, share in (("fp32", 1.0), ("fp16", 3.5))
        for n in (32, 128, 512, 2048)
        for s in [share * 1e12 * min(1, n / 900) / (4.0 * n**3)]
    ]
    figure = roofline(write_record(tmp_path, [*usual_points(), *sizes])).plot()
    figure.canvas.draw()
    boxes = [Text.get_window_extent(text) for text in figure.axes[0].texts]  # without its line
    pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]]
    assert len(boxes) >= 8 and not [1 for a, b in pairs if a.overlaps(b)]


def test_the_run_before_is_drawn_in_grey(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    now = write_record(tmp_path / "a", usual_points())
    then = write_record(tmp_path / "b", usual_points())
    assert "before (grey)" in texts(now.plot(before=then))
