"""The panel without a browser: its handlers called in an event loop, with real runs behind it."""

import asyncio

import ipywidgets as widgets
import pytest
from conftest import ended, until

from labkit.show.controls import Control
from labkit.show.panel import Panel
from labkit.show.panels import panel
from labkit.spec import KNOBS, Pipeline

QUICK = Pipeline(dataset="sleep", prep_ms=10, steps=20, seconds=None)
LONG = QUICK.but(steps=100_000)


@pytest.fixture(autouse=True)
def _own_home(tmp_path_factory, monkeypatch):
    """Runs of this file share a folder with no other's."""
    from labkit.process import folders

    monkeypatch.setenv("LABKIT_HOME", str(tmp_path_factory.mktemp("home")))
    folders.home.cache_clear()
    yield
    folders.home.cache_clear()


@pytest.mark.parametrize("name", KNOBS)
def test_every_knob_has_a_control_that_holds_its_default(name):
    control = Control(KNOBS[name], KNOBS[name].default)
    assert control.value == KNOBS[name].default
    assert type(control.value) is type(KNOBS[name].default)


@pytest.mark.parametrize("name", KNOBS)
def test_no_control_can_send_what_its_knob_refuses(name):
    widget = Control(KNOBS[name], KNOBS[name].default).widget
    control = Control(KNOBS[name], KNOBS[name].default)
    if hasattr(widget, "options"):
        values = [value for _, value in widget.options]
    else:
        values = [widget.min, widget.max] if hasattr(widget, "min") else [False, True]
    for value in values:
        control.widget.value = value
        KNOBS[name].check(control.value)


def test_a_value_beyond_the_sliders_usual_reach_is_kept():
    assert Control(KNOBS["num_workers"], 100).value == 100
    assert Control(KNOBS["prefetch_factor"], 500).value == 500
    assert Control(KNOBS["device"], "cuda:3").value == "cuda:3"


def test_none_is_shown_as_auto_and_sent_as_none():
    control = Control(KNOBS["io_ms"], None)
    assert control.widget.options[control.widget.index][0] == "auto"
    control.value = 5.0
    assert control.value == 5.0
    control.value = None
    assert control.value is None


def test_a_label_has_the_unit_and_escapes_what_it_shows():
    control = Control(KNOBS["io_ms"], None)
    label = control.children[0]
    assert isinstance(label, widgets.HTML)
    assert "io_ms" in label.value
    assert ">ms<" in label.value
    assert KNOBS["io_ms"].help in control.widget.tooltip


def test_a_panel_starts_from_a_pipeline_and_follows_its_controls():
    shown = panel(QUICK, knobs=["num_workers", "prefetch_factor"], batch_size=8)
    assert isinstance(shown, Panel)
    assert shown.asked == QUICK.but(batch_size=8)
    shown.controls["num_workers"].value = 3
    assert shown.asked.num_workers == 3
    assert shown.run is None


def test_an_unknown_knob_is_named():
    with pytest.raises(ValueError, match="did you mean 'num_workers'"):
        panel(knobs=["num_worker"])


def test_a_static_viewer_gets_a_sentence():
    text = panel()._repr_mimebundle_()["text/plain"]
    assert text.startswith("labkit panel for num_workers, prefetch_factor, batch_size, io_ms")


def test_knobs_that_do_not_go_together_are_explained_and_start_nothing():
    async def scenario():
        shown = panel(QUICK)
        shown.controls["prefetch_factor"].value = 4
        assert "needs loader workers" in shown.verdict.value
        shown.start()
        await ended(shown)
        assert "needs loader workers" in shown.verdict.value
        assert shown.runs == []
        shown.controls["num_workers"].value = 1
        assert shown.verdict.value == ""

    asyncio.run(scenario())


def test_outside_a_notebook_run_says_what_to_do_instead():
    shown = panel(QUICK)
    shown.run_button.click()
    assert "labkit.run()" in shown.verdict.value
    assert not shown.run_button.disabled


def test_two_runs_are_measured_drawn_and_compared():
    async def scenario():
        shown = panel(QUICK, knobs=["prep_ms"])
        shown.run_button.click()
        assert shown.run_button.disabled
        await until(lambda: shown.view.tick > 0)
        await ended(shown)
        first = shown.run
        assert first.outcome == "finished"
        assert "busy" in shown.verdict.value
        assert bytes(shown.figure.value).startswith(b"\x89PNG")
        assert shown.view.overlay == b""
        shown.controls["prep_ms"].value = 40.0
        shown.run_button.click()
        await ended(shown)
        assert shown.runs == [first, shown.run]
        assert shown.view.overlay != b""
        assert "(prep_ms 10 → 40)" in shown.comparison.value
        assert "slower" in shown.comparison.value

    asyncio.run(scenario())


def test_ten_presses_of_run_start_one_run_and_stop_ends_it():
    async def scenario():
        shown = panel(LONG)
        for _ in range(10):
            shown.start()
        await until(lambda: shown.view.tick > 0)
        for _ in range(10):
            shown.start()
        shown.stop_button.click()
        assert shown.stop_button.disabled
        await ended(shown)
        assert len(shown.runs) == 1
        assert shown.run.outcome == "stopped"
        assert not shown.view.running
        assert shown.view.status.startswith("stopped")

    asyncio.run(scenario())


def test_the_kernel_stays_free_while_a_run_goes_on_and_is_stopped():
    async def scenario():
        shown, beats = panel(LONG), 0

        async def heart():
            nonlocal beats
            while True:
                await asyncio.sleep(0.005)
                beats += 1

        pulse = asyncio.create_task(heart())
        shown.start()
        await until(lambda: shown.view.tick >= 5)
        at_stop = beats
        shown.stop()
        await until(lambda: not shown.run.running)
        assert at_stop > 20
        assert beats > at_stop  # it beat while the processes were waited for
        await ended(shown)
        pulse.cancel()

    asyncio.run(scenario())


def test_a_second_panel_waits_for_the_device_and_says_so():
    async def scenario():
        first, second = panel(LONG), panel(QUICK)
        first.start()
        await until(lambda: first.view.tick > 0)
        second.start()
        await until(lambda: "in use by" in second.view.status)
        assert second.view.status.startswith("waiting: device")
        first.stop()
        await ended(first)
        await ended(second)
        assert second.run.outcome == "finished"

    asyncio.run(scenario())


def test_an_error_while_following_is_shown_and_leaves_no_run_behind(monkeypatch):
    async def scenario():
        shown = panel(LONG)

        def breaks(run):
            raise RuntimeError("no <canvas>")

        monkeypatch.setattr(shown.view, "update", breaks)
        shown.start()
        await ended(shown)
        assert "RuntimeError: no &lt;canvas&gt;" in shown.verdict.value
        assert not shown.run.running

    asyncio.run(scenario())


def test_closing_the_panel_stops_its_run():
    async def scenario():
        shown = panel(LONG)
        shown.start()
        await until(lambda: shown.view.tick > 0)
        shown.close()
        await asyncio.wait_for(shown._task, 120)
        assert shown.run.outcome == "stopped"

    asyncio.run(scenario())
