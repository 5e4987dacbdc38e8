"""Panels in a real browser: JupyterLab in headless Chromium, run, watched, stopped, maltreated."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
# ms: waits end on a condition, these only bound a machine that hangs
SOON = 60_000
LATE = 240_000

sync_api.expect.set_options(timeout=SOON)
expect = sync_api.expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH"),
]

# What JupyterLab says of a kernel or a file that is gone: no widget's doing
OF_THE_SERVER = ("Failed to load resource", "Canceled future", "WebSocket connection")
CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
LAB_ARGS = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
LAB_ARGS += ["--LabApp.expose_app_in_browser=True", "--IdentityProvider.token=labkit"]
FOLDERS = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "IPYTHONDIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "LABKIT_HOME",
)
# No toast over the notebook, no question about the network
NO_TOASTS = "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
SESSION = "jupyterapp.shell.currentWidget.context.sessionContext"
KERNEL_IS_IDLE = """() => {
    const widget = window.jupyterapp?.shell.currentWidget;
    const kernel = widget?.context?.sessionContext.session?.kernel;
    return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
IN_KERNEL = f"""async (code) => {{
    let text = "";
    const asked = {SESSION}.session.kernel.requestExecute({{code}});
    asked.onIOPub = (said) => {{ text += said.content.text ?? said.content.evalue ?? ""; }};
    await asked.done;
    return text.trim();
}}"""
BLOCK = f"""() => {{
    {SESSION}.session.kernel.requestExecute({{code: "import time; time.sleep(4)"}});
}}"""
DARK = "() => jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
PREDICTED = """(panel) => new Promise((done) => {
    const handle = panel.querySelector(".noUi-handle"), pressed = performance.now();
    new MutationObserver((_changes, itself) => {
        if (!panel.querySelector(".labkit-bars").textContent.includes("Expected")) return;
        itself.disconnect();
        requestAnimationFrame(() => done((performance.now() - pressed) / 1000));
    }).observe(panel, {childList: true, subtree: true});
    handle.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight", bubbles: true}));
})"""
FIRST_DRAWN = """(panel) => new Promise((done) => {
    const view = panel.querySelector(".labkit-live"), clicked = performance.now();
    const run = [...panel.querySelectorAll("button")].find((b) => b.textContent.includes("Run"));
    new MutationObserver((_changes, itself) => {
        itself.disconnect();
        requestAnimationFrame(() => done((performance.now() - clicked) / 1000));
    }).observe(view, {attributes: true, attributeFilter: ["data-frames"]});
    run.click();
})"""
RUN_ALL = """() => {
    window.hasRun = false;
    jupyterapp.commands.execute("notebook:run-all-cells").then(() => { window.hasRun = true; });
}"""
WHOLE_LINE = """(view) => {
    const text = view.querySelector(".status").getBoundingClientRect();
    return text.height > 100 && text.bottom <= view.getBoundingClientRect().bottom;
}"""
SAVE = "() => jupyterapp.commands.execute('docmanager:save')"
PIPELINE = "lk.Pipeline(dataset='sleep', prep_ms=20, model='mlp', width=32, depth=1, xray=False"
LONG = (
    f"import labkit as lk\np = lk.panel({PIPELINE}, steps=10**6, seconds=None), ['num_workers'])\np"
)
SHORT = f"q = lk.panel({PIPELINE}, steps=30), ['num_workers'])\nq"


@contextlib.contextmanager
def lab_in(base):
    """A JupyterLab of our own, all its folders in `base`; yields (root folder, base URL)."""
    for name in (*FOLDERS, "root"):
        (base / name).mkdir()
    settings = base / "JUPYTERLAB_SETTINGS_DIR" / NO_TOASTS
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
    with open(base / "lab.log", "wb") as log:
        server = psutil.Popen(
            [sys.executable, "-m", "jupyterlab", *LAB_ARGS, f"--ServerApp.root_dir={base}/root"],
            env=os.environ | {name: str(base / name) for name in FOLDERS},
            cwd=base,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + SOON / 1000
    url = None
    while url is None and time.monotonic() < deadline and server.poll() is None:
        for file in (base / "JUPYTER_RUNTIME_DIR").glob("jpserver-*.json"):
            with contextlib.suppress(ValueError, KeyError):
                url = json.loads(file.read_text())["url"]
        time.sleep(0.1)
    assert url, (base / "lab.log").read_text()[-2000:]
    yield base / "root", url
    family = server.children(recursive=True)
    server.terminate()
    _gone, left = psutil.wait_procs([*family, server], 20)
    for process in left:
        process.kill()
    assert not [p for p in left if "labkit" in str(p)], "runs outlived their kernel"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with lab_in(tmp_path_factory.mktemp("lab")) as started:
        yield started


def chromium_of(playwright):
    return playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)


def page_of(chromium, **more):
    """A page of its own; `errors` collects what it throws, or writes to its console."""
    size = {"viewport": {"width": 1240, "height": 1500}, "device_scale_factor": 1.5}
    context = chromium.new_context(**size | more)
    context.set_default_timeout(SOON)
    page = context.new_page()
    page.errors = []

    def heard(text):
        if not any(known in text for known in OF_THE_SERVER):
            page.errors.append(text)

    page.on("pageerror", lambda error: page.errors.append(str(error)))
    page.on("console", lambda said: said.type == "error" and heard(said.text))
    return page


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = chromium_of(playwright)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser, request):
    page = page_of(browser, **getattr(request, "param", {}))
    yield page
    page.context.close()
    assert page.errors == []


def opened(page, lab, name, *sources):
    """Open a notebook with these cells and run them; return its first panel."""
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [cell | {"id": f"cell{i}", "source": source} for i, source in enumerate(sources)]
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (lab[0] / f"{name}.ipynb").write_text(json.dumps(book))
    page.goto(f"{lab[1]}lab/tree/{name}.ipynb?token=labkit&reset")
    page.wait_for_function(KERNEL_IS_IDLE, timeout=LATE)
    page.evaluate(RUN_ALL)
    return panels(page).first


def panels(page):
    return page.locator(".jp-OutputArea-output", has=page.locator("button", has_text="Stop"))


def view_of(panel):
    return panel.locator(".labkit-live")


def button(panel, name):
    return panel.locator("button", has_text=name)


def wait_for_frames(view, more):
    """Wait until `more` frames have arrived since now, even if JupyterLab draws it anew."""
    goal = int(view.get_attribute("data-frames") or 0) + more
    deadline = time.monotonic() + LATE / 1e3
    while int(view.get_attribute("data-frames") or 0) < goal:
        assert time.monotonic() < deadline, view.inner_text()
        view.page.wait_for_timeout(100)


def first_drawn_s(panel):
    """Click Run; return the seconds until the first step has been painted."""
    return panel.evaluate(FIRST_DRAWN)


def stopped(panel):
    """Press Stop, by the keyboard, and wait for the run's end."""
    button(panel, "Stop").press("Enter")
    expect(button(panel, "Run")).to_be_enabled(timeout=LATE)
    expect(view_of(panel).locator(".status")).to_contain_text("stopped")


def screenshot(target, name):
    """Keep a picture, where LABKIT_SCREENSHOTS says where to."""
    if folder := os.environ.get("LABKIT_SCREENSHOTS"):
        target.screenshot(path=Path(folder) / f"{name}.png")


def test_a_panel_runs_compares_draws_stops_and_takes_rough_hands(lab, page):
    panel = opened(page, lab, "panels", LONG, SHORT)
    page.wait_for_function("() => window.hasRun", timeout=LATE)
    other = panels(page).nth(1)
    view = view_of(panel)
    button(panel, "Run").evaluate("b => { for (let i = 0; i < 10; i++) b.click(); }")
    expect(button(panel, "Run")).to_be_disabled()
    wait_for_frames(view, 20)
    slider = panel.locator(".labkit-knob-num_workers .noUi-handle")  # for the next run
    slider.focus()
    for _ in range(3):
        slider.press("ArrowRight")
    button(other, "Run").click()  # two panels at once
    expect(view_of(other).locator(".status")).to_contain_text("in use by")
    stopped(panel)
    expect(view_of(other).locator(".status")).to_contain_text("finished", timeout=LATE)
    height = panel.bounding_box()["height"]
    button(panel, "Run").click()
    wait_for_frames(view, 25)
    screenshot(panel, "panel-running")
    stopped(panel)
    expect(panel).to_contain_text("Against the run before (num_workers 0 → 3)")
    assert panel.bounding_box()["height"] < height + 150  # lines of text, but no second picture
    screenshot(panel, "panel")
    code = "print([r.asked.num_workers for r in p.runs], [r.outcome for r in p.runs + q.runs])"
    outcomes = ["stopped", "stopped", "finished"]
    assert page.evaluate(IN_KERNEL, code) == f"[0, 3] {outcomes}"


NARROW = {"viewport": {"width": 620, "height": 1400}, "has_touch": True}


@pytest.mark.nightly
@pytest.mark.parametrize("page", [NARROW], indirect=True)
def test_by_keyboard_and_by_touch_on_a_narrow_dark_page_a_slider_predicts_and_runs_are_kept(
    lab, page
):
    panel = opened(page, lab, "narrow", SHORT.replace("q = ", "import labkit as lk\nq = "))
    page.evaluate(DARK)
    expect(panel).to_contain_text("Run once")
    expect(panel.get_by_role("group", name="labkit panel")).to_be_visible()  # the page knows it
    button(panel, "Run").focus()
    page.keyboard.press("Enter")
    expect(button(panel, "Stop")).to_be_focused()
    expect(panel.locator(".labkit-history .run")).to_have_count(1, timeout=LATE)
    expect(button(panel, "Run")).to_be_focused()
    page.evaluate(IN_KERNEL, "q.view.status = 'a long line ' * 60")
    expect(view_of(panel).locator(".status")).to_contain_text("a long line")
    assert view_of(panel).evaluate(WHOLE_LINE)
    screenshot(panel, "panel-long-line")
    nameless = "p => [...p.querySelectorAll(CONTROLS)].filter(e => !NAMED(e)).map(e => e.outerHTML)"
    controls = "'button, input, select, textarea, [role=slider], [contenteditable]'"
    named = "(e.ariaLabel || e.textContent.trim())"
    nameless = nameless.replace("CONTROLS", controls).replace("NAMED(e)", named)
    assert panel.evaluate(nameless) == []
    took = panel.evaluate(PREDICTED)
    print(f"from a key on the slider to the bars: {took:.3f} s")
    expect(panel.locator(".labkit-bars").first).to_contain_text("Expected")
    expect(panel.locator(".labkit-bars").first).to_contain_text("x the last run")
    assert panel.evaluate("p => p.scrollWidth <= p.clientWidth && p.clientWidth < 620")
    screenshot(panel, "panel-narrow")
    button(panel, "Run").tap()
    rows = panel.locator(".labkit-history .run")
    expect(rows).to_have_count(2, timeout=LATE)
    expect(panel.locator(".labkit-bars").first).to_contain_text(
        re.compile("side the range|not comparable: ")
    )
    rows.nth(1).locator("button", has_text="pin").tap()
    expect(rows.nth(1).locator("button", has_text="pinned")).to_be_visible()
    expect(panel).to_contain_text("Against the pinned run")
    button(panel, "copy as labkit").tap()
    expect(panel.locator("textarea")).to_have_value(re.compile(r"^lk\.run\(lk\.Pipeline\(.*num_w"))
    screenshot(panel, "panel-dark")


@pytest.mark.nightly
def test_a_run_goes_on_through_a_reload_and_a_kernel_that_is_busy_or_gone_is_named(lab, page):
    panel = opened(page, lab, "rough", LONG)
    expect(button(panel, "Run")).to_be_visible()
    screenshot(panel, "panel-fresh")
    page.evaluate(SAVE)
    page.evaluate(BLOCK)
    button(panel, "copy as labkit").click()
    expect(panel.locator("textarea")).to_have_value(re.compile("^lk.run"))  # after the wait
    expect(view_of(panel).locator(".status")).to_be_empty()
    page.evaluate(BLOCK)
    button(panel, "Run").click()
    expect(view_of(panel).locator(".status")).to_contain_text("busy with another cell")
    wait_for_frames(view_of(panel), 3)  # it starts by itself when the kernel is free
    page.reload()
    expect(button(panel, "Stop")).to_be_enabled(timeout=LATE)
    wait_for_frames(view_of(panel), 3)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=LATE)
    page.evaluate(SAVE)
    page.evaluate("() => jupyterapp.shell.currentWidget.close()")  # closed, and opened again
    page.evaluate("() => { jupyterapp.commands.execute('docmanager:open', {path: 'rough.ipynb'}) }")
    expect(button(panel, "Stop")).to_be_enabled(timeout=LATE)
    wait_for_frames(view_of(panel), 3)
    page.wait_for_function(KERNEL_IS_IDLE, timeout=LATE)
    kernel = psutil.Process(int(page.evaluate(IN_KERNEL, "import os; print(os.getpid())")))
    runs = kernel.children(recursive=True)
    assert any("labkit.bench" in " ".join(process.cmdline()) for process in runs)
    page.evaluate(f"() => {SESSION}.session.kernel.restart()")
    expect(view_of(panel).locator(".gone")).to_contain_text("run this cell again")
    expect(button(panel, "Run")).to_be_hidden()  # a click could only throw
    assert not psutil.wait_procs(runs, 10)[1]
    page.wait_for_function(KERNEL_IS_IDLE, timeout=LATE)
    page.evaluate(RUN_ALL)  # what it said to do works
    page.wait_for_function("() => window.hasRun", timeout=LATE)
    button(panel, "Run").click()
    wait_for_frames(view_of(panel), 3)
    stopped(panel)
    page.evaluate(SAVE)
    page.evaluate(f"() => {SESSION}.shutdown()")
    page.reload()
    page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.content?.widgets?.length")
    expect(page.locator(".jp-OutputArea").first).to_contain_text("run this cell", ignore_case=True)


@pytest.mark.nightly
def test_the_canvas_has_the_final_height_from_the_start_and_tells_and_zooms_by_itself(lab, page):
    run = f"import labkit as lk\nrun = lk.run({PIPELINE}, steps=400, seconds=12))"
    opened(page, lab, "canvas", run)
    view = page.locator(".labkit-live")
    output = page.locator(".jp-OutputArea-output").first
    wait_for_frames(view, 1)
    first = output.bounding_box()["height"]
    wait_for_frames(view, 30)
    box = view.bounding_box()
    x = box["x"] + 0.4 * box["width"]
    teeth = box["y"] + 80
    page.mouse.move(x, teeth)
    expect(view).to_have_attribute("data-said", re.compile(r"step \d+: .* ms, busy .*wait .*copy"))
    screenshot(output, "canvas-hover")
    page.mouse.down()
    page.mouse.move(x + 100, teeth, steps=4)
    page.mouse.up()
    expect(view).to_have_attribute("data-zoom", re.compile(r"[\d.]+,[\d.]+"))
    looked_at = view.get_attribute("data-zoom")
    wait_for_frames(view, 5)  # the run goes on; what is looked at stays
    assert view.get_attribute("data-zoom") == looked_at
    page.keyboard.press("Escape")
    expect(view).to_have_attribute("data-zoom", "")
    page.wait_for_function("() => window.hasRun", timeout=LATE)
    expect(output.locator("img")).to_be_visible()
    screenshot(output, "canvas-final")
    assert abs(output.bounding_box()["height"] - first) <= 2
