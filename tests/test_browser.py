"""Panels in a real browser: JupyterLab in headless Chromium, run, watched, stopped, maltreated."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
SOON, LATE = 60_000, 240_000  # ms: waits end on a condition, these only bound a machine that hangs

sync_api.expect.set_options(timeout=SOON)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH"),
]

CHROMIUM_ARGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-sync"]
CHROMIUM_ARGS += ["--disable-background-networking", "--disable-component-update", "--no-first-run"]
LAB_ARGS = ["--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0"]
LAB_ARGS += ["--LabApp.expose_app_in_browser=True", "--IdentityProvider.token=labkit"]
SETTINGS = {  # no toast over the notebook, no question about the network
    "@jupyterlab/apputils-extension/notification.jupyterlab-settings": {
        "fetchNews": "false",
        "checkForUpdates": False,
    },
}
KERNEL_IS_IDLE = """() => {
    const widget = window.jupyterapp?.shell.currentWidget;
    const kernel = widget?.context?.sessionContext.session?.kernel;
    return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
IN_KERNEL = """async (code) => {
    const kernel = jupyterapp.shell.currentWidget.context.sessionContext.session.kernel;
    let text = "";
    const asked = kernel.requestExecute({code});
    asked.onIOPub = (message) => { text += message.content.text ?? message.content.evalue ?? ""; };
    await asked.done;
    return text.trim();
}"""
SESSION = "jupyterapp.shell.currentWidget.context.sessionContext"
BLOCK = f"""() => {{
    {SESSION}.session.kernel.requestExecute({{code: "import time; time.sleep(4)"}});
}}"""
SAVE = "() => jupyterapp.commands.execute('docmanager:save')"
PIPELINE = "lk.Pipeline(dataset='sleep', prep_ms=20, model='mlp', width=32, depth=1, xray=False"
LONG = f"lk.panel({PIPELINE}, steps=10**6, seconds=None), knobs=['num_workers'])"
FIRST = f"import labkit as lk\np = {LONG}\np"
SECOND = f"q = lk.panel({PIPELINE}, steps=30), knobs=['num_workers'])\nq"
RUN_ALL = """() => {
    window.hasRun = false;
    jupyterapp.commands.execute("notebook:run-all-cells").then(() => { window.hasRun = true; });
}"""


def write_notebook(path, *sources):
    """Write a notebook with one code cell for each of `sources`."""
    cell = {"cell_type": "code", "metadata": {}, "execution_count": None, "outputs": []}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [cell | {"id": f"cell{i}", "source": source} for i, source in enumerate(sources)]
    book = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(book))
    return path


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab of our own, all its folders temporary; yields (root folder, base URL, token)."""
    base = tmp_path_factory.mktemp("lab")
    with running_lab(base) as (url, token):
        yield base / "root", url, token


@contextlib.contextmanager
def running_lab(base):
    folders = {
        name: base / name.lower()
        for name in (
            "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR",
            "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR", "LABKIT_HOME",
        )
    }  # fmt: skip
    for folder in (*folders.values(), base / "root"):
        folder.mkdir()
    for name, values in SETTINGS.items():
        file = folders["JUPYTERLAB_SETTINGS_DIR"] / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(values))
    command = [sys.executable, "-m", "jupyterlab", *LAB_ARGS]
    env = {**os.environ, **{name: str(folder) for name, folder in folders.items()}}
    with open(base / "lab.log", "wb") as log:
        server = subprocess.Popen(
            [*command, f"--ServerApp.root_dir={base / 'root'}"],
            env=env, cwd=base, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield where(server, folders["JUPYTER_RUNTIME_DIR"], base / "lab.log"), "labkit"
    finally:
        end(server)


def where(server, runtime, log):
    """Wait for the file in which the server says where it listens; return the URL."""
    deadline = time.monotonic() + SOON / 1000
    while time.monotonic() < deadline and server.poll() is None:
        for file in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(ValueError, KeyError):
                return json.loads(file.read_text())["url"]
        time.sleep(0.1)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")


def end(server):
    """End the server and see that its kernels, and their runs, are gone with it."""
    family = psutil.Process(server.pid).children(recursive=True) if server.poll() is None else []
    server.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(20)
    _gone, left = psutil.wait_procs(family, 5)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    if server.poll() is None:
        server.kill()
    server.wait()
    assert not [p for p in left if "labkit" in str(p)], "runs outlived their kernel"


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=CHROMIUM_ARGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1240, "height": 1500}, device_scale_factor=1.5)
    page = context.new_page()
    page.set_default_timeout(SOON)
    yield page
    context.close()


def open_notebook(page, lab, notebook):
    """Open `notebook`, a file in the server's root, and wait until its kernel answers."""
    _root, url, token = lab
    page.goto(f"{url}lab/tree/{notebook.name}?token={token}&reset")
    page.wait_for_function(KERNEL_IS_IDLE, timeout=LATE)


def run_all(page):
    """Run every cell and wait for the last; an error in one is the test's failure."""
    page.evaluate(RUN_ALL)
    page.wait_for_function("() => window.hasRun", timeout=LATE)
    errors = page.locator(".jp-RenderedText[data-mime-type='application/vnd.jupyter.error']")
    assert errors.all_inner_texts() == []


def frames(view):
    return int(view.get_attribute("data-frames") or 0)


def wait_for_frames(page, view, more):
    """Wait until `more` frames have arrived since now."""
    goal = frames(view) + more
    page.wait_for_function(
        "([view, goal]) => Number(view.dataset.frames || 0) >= goal",
        arg=[view.element_handle(), goal],
        timeout=LATE,
    )


def screenshot(target, name):
    """Keep a picture, where LABKIT_SCREENSHOTS says where to."""
    if folder := os.environ.get("LABKIT_SCREENSHOTS"):
        target.screenshot(path=Path(folder) / f"{name}.png")


def panels(page):
    return page.locator(".jp-OutputArea-output", has=page.locator("button", has_text="Stop"))


def view_of(panel):
    return panel.locator(".labkit-live")


def button(panel, name):
    return panel.locator("button", has_text=name)


def expect(locator):
    return sync_api.expect(locator)


def opened(page, lab, name, *cells):
    """Open a notebook with these cells and run them; return its first panel."""
    open_notebook(page, lab, write_notebook(lab[0] / f"{name}.ipynb", *cells))
    run_all(page)
    panel = panels(page).first
    panel.scroll_into_view_if_needed()
    return panel


def ended(panel, how="finished"):
    expect(button(panel, "Run")).to_be_enabled(timeout=LATE)
    expect(view_of(panel).locator(".status")).to_contain_text(how)


def set_slider(panel, name, presses):
    """Move the slider of knob `name` by pressing keys on it."""
    slider = panel.locator(f".labkit-knob-{name} .noUi-handle")
    slider.focus()
    for key in presses:
        slider.press(key)


def test_a_panel_runs_compares_draws_stops_and_takes_rough_hands(lab, page):
    panel = opened(page, lab, "panels", FIRST, SECOND)
    other, view = panels(page).last, view_of(panel)
    button(panel, "Run").evaluate("b => { for (let i = 0; i < 10; i++) b.click(); }")
    expect(button(panel, "Run")).to_be_disabled()
    wait_for_frames(page, view, 20)
    set_slider(panel, "num_workers", ["ArrowRight"] * 3)  # for the next run
    button(other, "Run").click()  # two panels at once
    expect(view_of(other).locator(".status")).to_contain_text("in use by")
    screenshot(panel, "pipeline-running")
    button(panel, "Stop").click()
    ended(panel, "stopped")
    expect(view).to_have_attribute("data-running", "false")
    ended(other)
    expect(other.locator("img")).to_be_visible()
    button(panel, "Run").click()
    wait_for_frames(page, view, 20)
    button(panel, "Stop").click()
    ended(panel, "stopped")
    expect(panel).to_contain_text("Against the run before (num_workers 0 → 3)")
    screenshot(panel, "pipeline")
    code = "print([r.asked.num_workers for r in p.runs], [r.outcome for r in p.runs + q.runs])"
    outcomes = ["stopped", "stopped", "finished"]
    assert page.evaluate(IN_KERNEL, code) == f"[0, 3] {outcomes}"


def test_every_kind_of_panel_works_in_a_notebook(lab, page):
    cells = [
        "import labkit as lk\nlk.measure_panel('matrix_products', n=[8, 16, 32], count=100)",
        "lk.ranks_panel(dataset='sleep', prep_ms=2, model='mlp', width=32, depth=1, steps=30)",
        "lk.replay_panel('workers-0', 'workers-6')",
        "lk.cost_panel(lk.recorded('workers-6'), before=lk.recorded('workers-0'))",
    ]
    opened(page, lab, "kinds", *cells)
    expect(page.locator(".labkit-fallback").first).to_be_hidden()  # a word for a lost kernel
    for number, (name, press) in enumerate(
        [("experiment", "Run"), ("ranks", "Run"), ("replay", "Play")]
    ):
        panel = panels(page).nth(number)
        button(panel, press).click()
        expect(panel.locator("img")).to_be_visible(timeout=LATE)
        expect(button(panel, press)).to_be_enabled(timeout=LATE)
        expect(panel.locator(".labkit-verdict")).not_to_be_empty()
        screenshot(panel, name)
    cost = page.locator(".jp-OutputArea-output", has=page.locator(".labkit-knob-usd_per_kwh"))
    box = cost.locator(".labkit-knob-samples_per_epoch input")
    box.fill("2000000")
    box.press("Enter")
    expect(cost).to_contain_text("2,000,000")
    screenshot(cost, "cost")


def test_a_cell_keeps_the_final_figure_and_no_widget(lab, page):
    source = f"import labkit as lk\nrun = lk.run({PIPELINE}, steps=60))"
    notebook = write_notebook(lab[0] / "cell.ipynb", source)
    open_notebook(page, lab, notebook)
    page.evaluate(RUN_ALL)
    wait_for_frames(page, page.locator(".labkit-live"), 3)
    expect(page.locator(".jp-OutputArea-output img")).to_be_visible(timeout=LATE)
    expect(page.locator(".labkit-live")).to_have_count(0)
    page.evaluate(SAVE)
    outputs = json.loads(notebook.read_text())["cells"][0]["outputs"]
    assert [set(output["data"]) for output in outputs] == [{"image/png", "text/plain"}]


def test_a_run_goes_on_through_a_reload_and_a_closed_tab(lab, page):
    panel = opened(page, lab, "reload", FIRST)
    page.evaluate(SAVE)
    button(panel, "Run").click()
    wait_for_frames(page, view_of(panel), 3)
    page.reload()
    page.wait_for_function(KERNEL_IS_IDLE, timeout=LATE)
    panel = panels(page).first
    expect(button(panel, "Stop")).to_be_enabled()
    wait_for_frames(page, view_of(panel), 3)
    context = page.context
    page.close()
    again = context.new_page()
    again.set_default_timeout(SOON)
    again.goto(f"{lab[1]}lab/tree/reload.ipynb?token={lab[2]}")
    panel = panels(again).first
    wait_for_frames(again, view_of(panel), 3)
    button(panel, "Stop").click()
    ended(panel, "stopped")
    expect(panel.locator("img")).to_be_visible()
    again.close()


def test_a_busy_kernel_a_restarted_one_and_one_that_is_gone_are_named_with_what_to_do(lab, page):
    panel = opened(page, lab, "busy", FIRST)
    page.evaluate(BLOCK)
    button(panel, "Run").click()
    expect(view_of(panel).locator(".status")).to_contain_text("busy with another cell")
    wait_for_frames(page, view_of(panel), 3)  # it starts by itself when the kernel is free
    kernel = psutil.Process(int(page.evaluate(IN_KERNEL, "import os; print(os.getpid())")))
    runs = kernel.children(recursive=True)
    assert any("labkit.bench" in " ".join(process.cmdline()) for process in runs)
    page.evaluate(f"() => {SESSION}.session.kernel.restart()")
    expect(view_of(panel).locator(".gone")).to_be_visible()
    expect(view_of(panel).locator(".gone")).to_contain_text("run this cell again")
    assert not psutil.wait_procs(runs, 10)[1]
    page.wait_for_function(KERNEL_IS_IDLE, timeout=LATE)
    run_all(page)  # what it said to do works
    panel = panels(page).first
    button(panel, "Run").click()
    wait_for_frames(page, view_of(panel), 3)
    button(panel, "Stop").click()
    ended(panel, "stopped")
    page.evaluate(SAVE)
    page.evaluate(f"() => {SESSION}.shutdown()")
    page.reload()
    page.wait_for_function("() => window.jupyterapp?.shell.currentWidget?.content?.widgets?.length")
    expect(page.locator(".jp-OutputArea").first).to_contain_text("run this cell", ignore_case=True)
