"""The micro-benchmarks: what they count, what they skip and why, and that their figures draw.

Times are whatever the machine gives: only counts, cases and wide relations are asserted.
"""

import json

import pytest

import labkit as lk
from labkit.experiments import EXPERIMENTS, Experiment
from labkit.results.launch import launch
from labkit.show.style import png_of

SMALL = {
    "anatomy": {},
    "copies": {"mib": 4, "pieces": [1, 4096, 1 << 30]},
    "bandwidth": {"largest_mib": 4},
    "matrix_rates": {"n": 128},
    "matrix_slices": {"n": 256, "slices": [32, 256, 1000], "small": 16},
    "matrix_sizes": {"around": 128, "formats": ["fp32"]},
    "eager_chain": {"mib": 16, "lengths": [1, 4]},
    "one_thread": {"seconds": 0.4},
    "roofline": {"mib": 16, "n": 256, "formats": ["fp32", "bf16"], "sizes": [32, 128]},
    "batch_path": {"mib": 4},
}


@pytest.fixture(scope="module")
def measured():
    """Every experiment once, small; each in a process of its own."""
    return {name: launch(Experiment(name, params)).wait() for name, params in SMALL.items()}


@pytest.fixture(params=SMALL)
def each(request, measured):
    return measured[request.param]


def test_it_finishes_on_this_machine_and_is_of_its_spec(each):
    assert each.outcome == "finished", each.error
    assert each.points
    assert each.name in SMALL


def test_it_saves_loads_and_draws_and_a_record_says_so(each, tmp_path):
    again = lk.load(each.save(tmp_path / "record.jsonl.gz"))
    assert [p.to_dict() for p in again] == [p.to_dict() for p in each]
    json.dumps(again.to_dict(), allow_nan=False)
    figure = again.plot()
    assert png_of(figure).startswith(b"\x89PNG")
    assert figure.get_figwidth() * figure.dpi <= 900
    said = "\n".join(text.get_text() for text in figure.texts)
    assert "RECORDED on" in said and each.machine.name in said


def test_no_two_texts_of_its_figure_overlap(each):
    if each.name in ("bandwidth", "roofline"):
        pytest.skip("sizes this small crowd the axis; the roofline has a test of its own")
    figure = each.plot()
    figure.canvas.draw()
    found = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    boxes = [text.get_window_extent() for text in found if text.get_text().strip()]
    assert not [1 for i, a in enumerate(boxes) for b in boxes[:i] if a.overlaps(b)]


def test_one_block_and_many_pieces_are_the_same_bytes(measured):
    copies = measured["copies"]
    ways = {"pinned": False, "non_blocking": False} if copies.machine.kind == "gpu" else {}
    one, many = (copies.one("copy", pieces=pieces, **ways) for pieces in (1, 4096))
    assert one.bytes == many.bytes == 4 * 2**20
    assert many.median_s > one.median_s
    assert f"{1 << 30} pieces" in copies.skipped
    if copies.machine.kind == "cpu":
        assert "no bus" in copies.skipped["pinned and non_blocking"]


def test_bandwidth_counts_what_is_read_and_what_is_written(measured):
    points = measured["bandwidth"].where("copy")
    sizes = [point.case["array_bytes"] for point in points]
    assert sizes == sorted(sizes) and sizes[-1] == 4 * 2**20
    assert all(point.bytes == 2 * point.case["array_bytes"] for point in points)
    assert measured["bandwidth"].one("largest").values["past_cache"] in (True, False, None)


def test_every_format_is_measured_or_skipped_with_a_reason(measured):
    rates = measured["matrix_rates"]
    of = {point.of for point in rates}
    assert of | set(rates.skipped) == {"fp64", "fp32", "tf32", "fp16", "bf16"}
    assert not of & set(rates.skipped) and "fp32" in of
    assert rates.one("fp32").flops == 2 * 128**3
    assert all(len(why) > 10 for why in rates.skipped.values())


def test_an_unknown_format_is_an_error_that_names_those_there_are():
    failed = launch(Experiment("matrix_rates", {"formats": ["fp12"]})).wait()
    assert failed.outcome == "failed" and "fp32" in failed.error


def test_slices_are_the_same_multiplications(measured):
    slices = measured["matrix_slices"]
    whole = slices.one("at once")
    assert {p.flops for p in slices.where("in slices")} == {whole.flops} == {2 * 256**3}
    assert slices.one("32 small ones").flops == 32 * 2 * 16**3
    assert "1000 slices" in slices.skipped


def test_sizes_name_the_multiple_they_are(measured):
    cases = {p.case["n"]: p.case["multiple"] for p in measured["matrix_sizes"]}
    assert cases == {64: 64, 96: 32, 120: 8, 127: 1, 128: 64, 129: 1, 136: 8, 160: 32, 192: 64}


def test_four_passes_move_four_times_the_bytes(measured):
    chain = measured["eager_chain"]
    one, four = (chain.one("in turn", operations=count) for count in (1, 4))
    assert one.bytes == 2 * 16 * 2**20 and four.bytes == 4 * one.bytes
    assert four.median_s > one.median_s


def test_one_thread_fills_its_meter_but_not_the_device(measured):
    found = measured["one_thread"].where("threads", threads=1)
    for point in found:
        assert 0 < point.values["meter"] <= 1.1  # less where others have the core
        assert point.values["used"] == pytest.approx(1 / point.values["lanes"])
    assert found or measured["one_thread"].skipped


def test_the_path_is_measured_leg_by_leg_and_leaves_no_file(measured):
    path = measured["batch_path"]
    assert path.one("page cache to RAM").bytes == 4 * 2**20
    assert not list(path.path.glob("*.bin"))
    if path.machine.kind == "cpu":
        assert path.one("RAM to core").gb_per_s and "PCIe" in str(path.skipped)
    else:
        assert path.one("pinned RAM to device").gb_per_s


def test_the_anatomy_tells_only_what_the_device_tells(measured):
    facts = measured["anatomy"].one("device").values
    if measured["anatomy"].machine.kind == "cpu":
        assert facts["cores"] >= 1 and "sms" not in facts
    else:
        assert facts["warp"] in (32, 64, None)


def test_the_measured_roofline_places_what_was_counted(measured):
    line = lk.roofline(measured["roofline"])
    assert line.one("add").intensity == pytest.approx(1 / 12)
    assert line.one("layer norm").intensity == pytest.approx(7 / 8)
    assert line.one("matmul", n=128, format="fp32").intensity == pytest.approx(128 / 6)
    assert set(line.roof.tflop_per_s) | set(measured["roofline"].skipped) == {"fp32", "bf16"}
    rates = {(p.kind): [q.tflop_per_s for q in line.points if q.kind == p.kind and q.name ==
                        "matmul"] for p in line.points}  # fmt: skip
    assert all(line.roof.tflop_per_s[kind] == max(values) for kind, values in rates.items())


def test_the_experiments_of_this_file_are_listed_with_a_figure():
    for name in SMALL:
        assert EXPERIMENTS[name].figure, name
        assert EXPERIMENTS[name].help
