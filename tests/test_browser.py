"""Panels in a real browser: JupyterLab in headless Chromium, run, watched, stopped, maltreated."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

import psutil
import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
LONGEST = 240_000  # ms: waits end on a condition, this only bounds a machine that hangs

sync_api.expect.set_options(timeout=LONGEST)
expect = sync_api.expect

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH"),
]

# What JupyterLab says of a kernel or a file that is gone: no widget's doing
OF_THE_SERVER = ("Failed to load resource", "Canceled future", "WebSocket connection")
CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
LAB_CONFIG = {
    "ServerApp": {"open_browser": False, "allow_root": True, "ip": "127.0.0.1", "port": 0},
    "LabApp": {"expose_app_in_browser": True, "open_browser": False},
    "IdentityProvider": {"token": "labkit"},
}
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
PREDICTED = """(panel) => new Promise((done) => {
    const handle = panel.querySelector(".noUi-handle"), pressed = performance.now();
    new MutationObserver((_changes, itself) => {
        if (!panel.querySelector(".labkit-prediction").textContent.includes("Prediction")) return;
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
HAS_RUN = "() => window.hasRun"
NAMELESS = """(panel) => {
    const controls = "button, input, select, textarea, [role=slider], [contenteditable]";
    const nameless = (part) => !part.ariaLabel && !part.textContent.trim();
    return [...panel.querySelectorAll(controls)].filter(nameless).map((part) => part.outerHTML);
}"""
SAVE = "() => jupyterapp.commands.execute('docmanager:save')"
PIPELINE = "lk.Pipeline(dataset='sleep', prep_ms=20, model='mlp', width=32, depth=1, xray=False"
LONG = (
    f"import labkit as lk\np = lk.panel({PIPELINE}, steps=10**6, seconds=None), ['num_workers'])\np"
)
SHORT = f"import labkit as lk\nq = lk.panel({PIPELINE}, steps=30), ['num_workers'])\nq"

SUMS = """import labkit as lk, torch
def summed(bench, rows, kind):
    numbers = torch.ones(rows, 500, dtype=getattr(torch, kind))
    bench.time(lambda: numbers.sum(), bytes=numbers.nbytes)
sums = lk.measure(summed, rows=[32, 64], kind=["float32", "float64"])"""


@contextlib.contextmanager
def lab_in(base, command=(sys.executable, "-m", "jupyterlab", "root")):
    """A JupyterLab of our own, all its folders in `base`; yields (root folder, base URL)."""
    for name in (*FOLDERS, "root"):
        (base / name).mkdir()
    settings = base / "JUPYTERLAB_SETTINGS_DIR" / NO_TOASTS
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
    config = base / "JUPYTER_CONFIG_DIR/jupyter_lab_config.json"
    config.write_text(json.dumps(LAB_CONFIG))
    with open(base / "lab.log", "wb") as log:
        server = psutil.Popen(
            command,
            env=os.environ | {name: str(base / name) for name in FOLDERS},
            cwd=base,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    while True:
        assert server.poll() is None, (base / "lab.log").read_text()[-2000:]
        with contextlib.suppress(ValueError):  # it is not there yet, or half written
            [file] = (base / "JUPYTER_RUNTIME_DIR").glob("jpserver-*.json")
            url = json.loads(file.read_text())["url"]
            break
        time.sleep(0.1)
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
    screen = {"viewport": {"width": 1240, "height": 1500}, "device_scale_factor": 1.5}
    context = chromium.new_context(**screen | {"has_touch": True} | more)
    context.set_default_timeout(LONGEST)
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
def page(browser):
    page = page_of(browser)
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
    page.wait_for_function(KERNEL_IS_IDLE)
    page.evaluate(RUN_ALL)
    return panels(page).first


def panels(page):
    return page.locator(".jp-OutputArea-output", has=page.locator("button", has_text="Stop"))


def view_of(panel):
    return panel.locator(".labkit-live")


def expect_status(panel, text):
    expect(view_of(panel).locator(".status")).to_contain_text(text)


def button(panel, name):
    return panel.locator("button", has_text=name)


def wait_for_frames(view, more=3):
    """Wait until `more` frames have arrived since now, even if JupyterLab draws it anew."""

    def count():
        return int(view.get_attribute("data-frames") or 0)

    goal = count() + more
    while count() < goal:
        view.page.wait_for_timeout(100)


def first_drawn_s(panel):
    """Click Run; return the seconds until the first step has been painted."""
    return panel.evaluate(FIRST_DRAWN)


def stop(panel):
    """Press Stop, by the keyboard, and wait for the run's end."""
    button(panel, "Stop").press("Enter")
    expect(button(panel, "Run")).to_be_enabled()
    expect_status(panel, "stopped")


def test_a_panel_runs_compares_draws_stops_and_takes_rough_hands(lab, page):
    panel = opened(page, lab, "panels", LONG, SHORT)
    page.wait_for_function(HAS_RUN)
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
    expect_status(other, "in use by")
    stop(panel)
    expect_status(other, "finished")
    height = panel.bounding_box()["height"]
    button(panel, "Run").click()
    wait_for_frames(view, 25)
    stop(panel)
    expect(panel).to_contain_text("Against the run before (num_workers 0 → 3)")
    assert panel.bounding_box()["height"] < height + 150  # lines of text, but no second picture
    code = "print([r.asked.num_workers for r in p.runs], [r.outcome for r in p.runs + q.runs])"
    assert page.evaluate(IN_KERNEL, code) == "[0, 3] ['stopped', 'stopped', 'finished']"


@pytest.mark.nightly
def test_a_run_goes_on_through_a_reload_and_a_kernel_that_is_busy_or_gone_is_named(lab, page):
    panel = opened(page, lab, "rough", LONG)
    view = view_of(panel)
    expect(button(panel, "Run")).to_be_visible()
    page.evaluate(SAVE)
    page.evaluate(BLOCK)
    button(panel, "Run").click()
    expect_status(panel, "busy with another cell")
    wait_for_frames(view)  # it starts by itself when the kernel is free
    page.reload()
    expect(button(panel, "Stop")).to_be_enabled()
    wait_for_frames(view)
    page.wait_for_function(KERNEL_IS_IDLE)
    kernel = psutil.Process(int(page.evaluate(IN_KERNEL, "import os; print(os.getpid())")))
    runs = kernel.children(recursive=True)
    assert runs
    page.evaluate(f"() => {SESSION}.session.kernel.restart()")
    expect(view.locator(".gone")).to_contain_text("run this cell again")
    expect(button(panel, "Run")).to_be_hidden()  # a click could only throw
    assert not psutil.wait_procs(runs, 10)[1]
    page.wait_for_function(KERNEL_IS_IDLE)
    page.evaluate(RUN_ALL)  # what it said to do works
    page.wait_for_function(HAS_RUN)
    button(panel, "Run").click()
    wait_for_frames(view)
    stop(panel)
    page.evaluate(SAVE)
    page.evaluate(f"() => {SESSION}.shutdown()")
    page.reload()
    page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.content?.widgets?.length")
    expect(page.locator(".jp-OutputArea").first).to_contain_text("run this cell", ignore_case=True)


@pytest.mark.nightly
def test_the_canvas_has_the_final_height_from_the_start_and_tells_and_zooms_by_itself(lab, page):
    run = f"import labkit as lk\nlk.run({PIPELINE}, steps=1000, seconds=None))"
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
    expect(view).to_have_attribute(
        "data-read-out", re.compile(r"step \d+: .* ms, busy .*wait .*copy")
    )
    page.mouse.down()
    page.mouse.move(x + 100, teeth, steps=4)
    page.mouse.up()
    expect(view).to_have_attribute("data-zoom", re.compile(r"[\d.]+,[\d.]+"))
    looked_at = view.get_attribute("data-zoom")
    wait_for_frames(view, 5)  # the run goes on; what is looked at stays
    assert view.get_attribute("data-zoom") == looked_at
    page.keyboard.press("Escape")
    expect(view).to_have_attribute("data-zoom", "")
    page.wait_for_function(HAS_RUN)
    expect(output.locator("img")).to_be_visible()
    assert abs(output.bounding_box()["height"] - first) <= 2


def test_a_function_has_a_panel_that_adds_points(lab, page):
    panel = opened(page, lab, "function", SUMS, "print(len(sums.rows), 'rows')")
    picture = panel.locator("img")
    button(panel, "Stop").wait_for()
    expect(page.get_by_text("4 rows", exact=True)).to_be_visible()
    expect(button(panel, "Measure")).to_be_enabled()
    stored = page.locator(".jp-RenderedImage")
    expect(stored).to_have_count(1)
    expect(stored).to_be_hidden()  # the panel shows it: it is for the file, and without a kernel
    assert panel.evaluate(NAMELESS) == []
    before = picture.get_attribute("src")
    slider = panel.locator(".labkit-knob-rows .noUi-handle")
    slider.focus()
    slider.press("ArrowRight")
    button(panel, "Measure").press("Enter")
    expect(panel.locator("[role=status]")).to_contain_text("rows=48, kind='float32': 1 row")
    assert picture.get_attribute("src") != before and " 48 " in picture.get_attribute("alt")
