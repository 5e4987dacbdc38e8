"""The panel in a real browser: JupyterLab in headless Chromium, moved, run, watched, stopped."""

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
LESSON = Path(__file__).parents[1] / "notebooks" / "02_sawtooth_diagnosis.ipynb"
SOON, LATE = 60_000, 240_000  # ms: waits end on a condition, these only bound a machine that hangs

sync_api.expect.set_options(timeout=SOON)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH"),
]

CHROMIUM_ARGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
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
def running_lab(base, settings=SETTINGS):
    folders = {
        name: base / name.lower()
        for name in (
            "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR",
            "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR", "LABKIT_HOME",
        )
    }  # fmt: skip
    for folder in (*folders.values(), base / "root"):
        folder.mkdir()
    for name, values in settings.items():
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


def screenshot(target, name, tmp_path):
    folder = Path(os.environ.get("LABKIT_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    target.screenshot(path=folder / f"{name}.png")


def panel_of(page):
    """The panel: the output that has a Run button and a canvas."""
    return page.locator(".jp-OutputArea-output", has=page.locator("button", has_text="Run")).last


def button(panel, name):
    return panel.locator("button", has_text=name)


def expect(locator):
    return sync_api.expect(locator)


def set_slider(panel, name, presses):
    """Move the slider of knob `name` by pressing keys on it."""
    slider = panel.locator(f".labkit-knob-{name} .noUi-handle")
    slider.focus()
    for key in presses:
        slider.press(key)


def test_a_panel_runs_compares_draws_and_stops(lab, page, tmp_path):
    if LESSON.exists():
        notebook = Path(shutil.copy(LESSON, lab[0]))
    else:
        notebook = write_notebook(lab[0] / "tiny.ipynb", "import labkit as lk\nlk.panel()")
    open_notebook(page, lab, notebook)
    run_all(page)
    panel = panel_of(page)
    view = panel.locator(".labkit-live")
    run, stop = button(panel, "Run"), button(panel, "Stop")
    panel.scroll_into_view_if_needed()

    run.click()
    expect(run).to_be_disabled()
    wait_for_frames(page, view, 10)
    expect(run).to_be_enabled(timeout=LATE)
    expect(view.locator(".status")).to_contain_text("finished")

    set_slider(panel, "num_workers", ["ArrowRight"] * 6)
    run.click()
    wait_for_frames(page, view, 5)
    screenshot(panel, "panel-running", tmp_path)
    expect(run).to_be_enabled(timeout=LATE)
    expect(panel.locator("img")).to_be_visible()
    expect(panel).to_contain_text("Against the run before (num_workers 0 → 6)")
    screenshot(panel, "panel", tmp_path)

    set_slider(panel, "num_workers", ["Home"])
    run.click()
    wait_for_frames(page, view, 5)
    stop.click()
    expect(run).to_be_enabled()
    expect(view.locator(".status")).to_contain_text("stopped")
    expect(view).to_have_attribute("data-running", "false")


def test_a_cell_keeps_the_final_figure_and_no_widget(lab, page, tmp_path):
    source = "import labkit as lk\nrun = lk.run(lk.Pipeline(dataset='sleep', prep_ms=20, steps=60))"
    notebook = write_notebook(lab[0] / "cell.ipynb", source)
    open_notebook(page, lab, notebook)
    page.evaluate(RUN_ALL)
    wait_for_frames(page, page.locator(".labkit-live"), 3)
    screenshot(page.locator(".jp-OutputArea-output").first, "cell-running", tmp_path)
    expect(page.locator(".jp-OutputArea-output img")).to_be_visible(timeout=LATE)
    expect(page.locator(".labkit-live")).to_have_count(0)
    screenshot(page.locator(".jp-OutputArea-output").first, "cell-finished", tmp_path)
    page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    outputs = json.loads(notebook.read_text())["cells"][0]["outputs"]
    kinds = [set(output["data"]) for output in outputs]
    assert kinds == [{"image/png", "text/plain"}]
