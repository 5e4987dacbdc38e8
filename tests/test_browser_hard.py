"""The panel under rough hands in a real browser: it recovers, or says what to do."""

import json

import psutil
import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

from test_browser import (  # noqa: E402, F401 -- fixtures, too
    CHROMIUM,
    KERNEL_IS_IDLE,
    LATE,
    SOON,
    browser,
    button,
    expect,
    lab,
    open_notebook,
    page,
    run_all,
    screenshot,
    set_slider,
    wait_for_frames,
    write_notebook,
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH"),
]

PIPELINE = "lk.Pipeline(dataset='sleep', prep_ms=20, model='mlp', width=32, depth=1, xray=False"
FIRST = f"import labkit as lk\np = lk.panel({PIPELINE}, steps=200), knobs=['num_workers'])\np"
SECOND = f"q = lk.panel({PIPELINE}, steps=50), knobs=['num_workers'])\nq"
IN_KERNEL = """async (code) => {
    const kernel = jupyterapp.shell.currentWidget.context.sessionContext.session.kernel;
    let text = "";
    const asked = kernel.requestExecute({code});
    asked.onIOPub = (message) => { text += message.content.text ?? message.content.evalue ?? ""; };
    await asked.done;
    return text.trim();
}"""
BLOCK_KERNEL = """(code) => {
    const kernel = jupyterapp.shell.currentWidget.context.sessionContext.session.kernel;
    kernel.requestExecute({code});
}"""
RESTART = """() => jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.restart()"""
SAVE = "() => jupyterapp.commands.execute('docmanager:save')"


def panels(page):  # noqa: F811
    return page.locator(".jp-OutputArea-output", has=page.locator("button", has_text="Run"))


def view_of(panel):
    return panel.locator(".labkit-live")


def in_kernel(page, expression):  # noqa: F811
    """The value of a Python expression in the notebook's kernel."""
    code = f"import json; print(json.dumps({expression}))"
    return json.loads(page.evaluate(IN_KERNEL, code))


def opened(page, lab, name, *cells):  # noqa: F811
    """A notebook with these cells, run; its first panel."""
    open_notebook(page, lab, write_notebook(lab[0] / f"{name}.ipynb", *cells))
    run_all(page)
    panel = panels(page).first
    panel.scroll_into_view_if_needed()
    return panel


def finished(panel):
    expect(button(panel, "Run")).to_be_enabled(timeout=LATE)
    expect(view_of(panel).locator(".status")).to_contain_text("finished")


def test_a_run_goes_on_through_a_reload_and_a_closed_tab(lab, page, tmp_path):  # noqa: F811
    panel = opened(page, lab, "reload", FIRST)
    page.evaluate(SAVE)
    button(panel, "Run").click()
    wait_for_frames(page, view_of(panel), 5)
    page.reload()
    page.wait_for_function(KERNEL_IS_IDLE, timeout=LATE)
    panel = panels(page).first
    expect(button(panel, "Stop")).to_be_enabled()
    wait_for_frames(page, view_of(panel), 5)
    screenshot(panel, "hard-reloaded-during-a-run", tmp_path)
    finished(panel)
    context = page.context
    page.close()
    again = context.new_page()
    again.set_default_timeout(SOON)
    url, token = lab[1:]
    again.goto(f"{url}lab/tree/reload.ipynb?token={token}")
    panel = panels(again).first
    finished(panel)
    expect(panel.locator("img")).to_be_visible()
    screenshot(panel, "hard-reopened", tmp_path)
    button(panel, "Run").click()
    wait_for_frames(again, view_of(panel), 3)
    button(panel, "Stop").click()
    expect(view_of(panel).locator(".status")).to_contain_text("stopped")
    again.close()


def test_ten_presses_are_one_run_and_sliders_moved_meanwhile_are_for_the_next(
    lab, page, tmp_path  # noqa: F811
):  # fmt: skip
    panel = opened(page, lab, "presses", FIRST, SECOND)
    other = panels(page).last
    button(panel, "Run").evaluate("b => { for (let i = 0; i < 10; i++) b.click(); }")
    wait_for_frames(page, view_of(panel), 2)
    set_slider(panel, "num_workers", ["ArrowRight"] * 3)
    button(other, "Run").click()  # two panels at once
    expect(view_of(other).locator(".status")).to_contain_text("in use by")
    screenshot(other, "hard-second-panel-waits", tmp_path)
    finished(panel)
    finished(other)
    assert in_kernel(page, "[len(p.runs), p.run.asked.num_workers, p.pipeline.num_workers]") == [
        1, 0, 3,
    ]  # fmt: skip
    assert in_kernel(page, "[run.outcome for run in p.runs + q.runs]") == ["finished"] * 2


def test_a_busy_kernel_and_a_restarted_one_are_named_with_what_to_do(
    lab, page, tmp_path  # noqa: F811
):  # fmt: skip
    panel = opened(page, lab, "busy", FIRST)
    status = view_of(panel).locator(".status")
    page.evaluate(BLOCK_KERNEL, "import time; time.sleep(5)")
    button(panel, "Run").click()
    expect(status).to_contain_text("busy with another cell")
    screenshot(panel, "hard-kernel-busy", tmp_path)
    wait_for_frames(page, view_of(panel), 3)  # it starts by itself when the kernel is free
    runs = [p for p in psutil.process_iter(["cmdline"]) if of_lab(p, lab)]
    assert runs
    page.evaluate(RESTART)
    expect(view_of(panel).locator(".gone")).to_be_visible()
    expect(view_of(panel).locator(".gone")).to_contain_text("run this cell again")
    screenshot(panel, "hard-kernel-restarted", tmp_path)
    _gone, left = psutil.wait_procs(runs, 3)
    assert not left
    page.wait_for_function(KERNEL_IS_IDLE, timeout=LATE)
    run_all(page)  # what it said to do works
    panel = panels(page).first
    button(panel, "Run").click()
    wait_for_frames(page, view_of(panel), 3)
    button(panel, "Stop").click()
    expect(view_of(panel).locator(".status")).to_contain_text("stopped")


def of_lab(process, lab):  # noqa: F811
    """Whether a process measures for the kernels of this lab."""
    line = " ".join(process.info["cmdline"] or [])
    return "labkit.bench" in line and str(lab[0].parent) in line


def test_a_notebook_opened_later_without_its_kernel_says_what_to_do(
    lab, page, tmp_path  # noqa: F811
):  # fmt: skip
    panel = opened(page, lab, "later", FIRST)
    expect(panel).to_be_visible()
    page.evaluate(SAVE)
    page.evaluate("() => jupyterapp.shell.currentWidget.context.sessionContext.shutdown()")
    page.reload()
    page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.content?.widgets?.length")
    output = page.locator(".jp-OutputArea").first
    expect(output).to_contain_text("run this cell", ignore_case=True)
    screenshot(output, "hard-opened-without-kernel", tmp_path)
