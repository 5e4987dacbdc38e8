"""The panel of an experiment, without a browser: its handlers in an event loop, real processes."""

import asyncio

import pytest
from conftest import ended, until

import labkit as lk
from labkit.show.measure_panel import Choice, MeasurePanel, against, measure_panel, overlays


def test_a_list_makes_a_control_and_anything_else_is_fixed():
    shown = measure_panel("matrix_products", n=[8, 16, 64], count=32)
    assert isinstance(shown, MeasurePanel)
    assert list(shown.controls) == ["n"]
    assert shown.experiment.params == {"n": 64, "count": 32}
    shown.controls["n"].value = 8
    assert shown.experiment.params == {"n": 8, "count": 32}
    assert shown.run is None


def test_a_control_holds_any_value_an_experiment_takes():
    for values in ([None, 8], [True, False], [[1, 2], [3]], ["fp32", "bf16"], [0.5, 1.0]):
        choice = Choice("x", values, values[-1])
        assert choice.value == values[-1]
        choice.widget.value = 0
        assert choice.value == values[0]
    assert Choice("x", [None, 8], 8).widget.options[0][0] == "auto"


def test_bad_names_and_empty_lists_are_refused_before_any_widget():
    with pytest.raises(ValueError, match="there are"):
        measure_panel("nothing")
    with pytest.raises(ValueError, match="has no parameter"):
        measure_panel("matrix_products", size=[1])
    with pytest.raises(ValueError, match="at least one value"):
        measure_panel("matrix_products", n=[])


def test_a_static_viewer_gets_a_sentence():
    text = measure_panel("matrix_products", n=[8])._repr_mimebundle_()["text/plain"]
    assert text.startswith("labkit panel of matrix_products for n:")


def test_outside_a_notebook_run_says_what_to_do_instead():
    shown = measure_panel("matrix_products", n=[8])
    shown.run_button.click()
    assert "labkit.measure()" in shown.verdict.value
    assert not shown.run_button.disabled


def test_two_measurements_are_drawn_and_compared_and_the_kernel_stays_free():
    async def scenario():
        shown, beats = measure_panel("matrix_products", n=[8, 16], count=16), 0

        async def heart():
            nonlocal beats
            while True:
                await asyncio.sleep(0.005)
                beats += 1

        pulse = asyncio.create_task(heart())
        shown.run_button.click()
        assert shown.run_button.disabled
        await ended(shown)
        assert beats > 20
        pulse.cancel()
        assert shown.run.outcome == "finished"
        assert bytes(shown.figure.value).startswith(b"\x89PNG")
        assert "Against" not in shown.comparison.value
        shown.controls["n"].value = 16
        shown.start()
        await ended(shown)
        assert len(shown.runs) == 2
        assert "(n 8 → 16)" in shown.comparison.value
        assert "GFLOP/s" in shown.comparison.value

    asyncio.run(scenario())


def test_ten_presses_start_one_process_and_stop_ends_it():
    async def scenario():
        shown = measure_panel("matrix_products", n=[512], count=64)
        for _ in range(10):
            shown.start()
        await until(lambda: shown.run is not None and "measuring" in shown.view.value)
        for _ in range(10):
            shown.start()
        shown.stop_button.click()
        await ended(shown)
        assert len(shown.runs) == 1
        assert shown.run.outcome in ("stopped", "finished")

    asyncio.run(scenario())


def test_an_experiment_that_fails_says_why_in_the_panel():
    async def scenario():
        shown = measure_panel("matrix_products", n=[1 << 20], count=1 << 10)
        shown.start()
        await ended(shown)
        assert shown.run.outcome == "failed"
        assert "labkit-verdict" in shown.verdict.value
        assert "Finished" not in shown.verdict.value

    asyncio.run(scenario())


def test_points_are_paired_by_case_then_by_position():
    shown = measure_panel("matrix_products", n=[8])
    done = lk.measure("matrix_products", n=8, count=16, plot=False)
    assert shown.measured(done)
    lines = against(done, done)
    assert lines[0] == "Against the run before (same values):"
    assert len(lines) == 3 and all("1.00x as fast" in line for line in lines[1:])


def test_the_run_before_is_given_only_to_a_figure_that_has_room_for_it():
    assert overlays("matrix_products")
    assert not overlays("batch_path")
