// The live view in the page: its elements, and what the kernel's messages change in them. Before it
// stand the files that LiveView (live.py) lists.

const MOST_STEPS = 200000; // that are kept, so that hovering and zooming ask nothing of the kernel
const PATIENCE_MS = 1500;
// What the page says by itself: that the kernel does not answer yet, or is gone (see live.css)
const BUSY = "The kernel is busy with another cell: what you pressed waits until that is done.";
const GONE = "The kernel behind this is gone or was restarted: run this cell again.";

function render({ model, el }) {
  const page = elementsIn(el);
  const view = {
    steps: [], // all that came of this run
    frame: null,
    before: null, // the frame of the run before
    zoom: null, // [from, to] in s; null follows the run
    pointer: null,
    axes: {}, // as they were drawn last
    readOut: "",
  };
  let frames = 0;
  let isAsked = 0;
  const paint = () => {
    isAsked = 0;
    draw(page.canvas, model, view);
    page.root.dataset.readOut = view.readOut; // what tests read
    page.root.dataset.zoom = view.zoom?.map((s) => s.toFixed(4)) ?? "";
  };
  const redraw = () => (isAsked ||= requestAnimationFrame(paint));
  const patience = sayWhereBusy(page, () => sayStatus());
  const sayStatus = () => {
    patience.end();
    const status = model.get("status");
    page.status.textContent = status;
    page.status.title = status;
    page.canvas.setAttribute("aria-label", `Device busy over time: ${status}`);
  };
  const takeFrame = () => {
    keepFrame(view, readFrame(model.get("frame")));
    page.badge.textContent = view.frame?.mark ?? "";
    redraw();
  };
  const takeNextFrame = () => {
    takeFrame();
    if (!view.frame) return;
    frames += 1;
    page.root.dataset.frames = frames; // what tests wait for
    patience.end();
  };
  const takeBefore = () => {
    view.before = readFrame(model.get("overlay"));
    redraw();
  };
  const listeners = {
    "change:frame": takeNextFrame,
    "change:expected": redraw,
    "change:overlay": takeBefore,
    "change:status": sayStatus,
  };
  for (const [names, listener] of Object.entries(listeners)) model.on(names, listener);
  const sized = new ResizeObserver(redraw);
  sized.observe(page.canvas);
  const themed = new MutationObserver(redraw);
  themed.observe(document.body, { attributes: true });
  listenOn(page.canvas, view, redraw);
  sayStatus();
  takeFrame();
  takeBefore();
  return () => {
    for (const [names, listener] of Object.entries(listeners)) model.off(names, listener);
    patience.stop();
    sized.disconnect();
    themed.disconnect();
    cancelAnimationFrame(isAsked);
  };
}

function elementsIn(el) {
  const root = element(el, "div", { class: "labkit-live" });
  const canvas = element(root, "canvas", { role: "img", tabindex: "0" });
  canvas.dataset.lmSuppressShortcuts = "true"; // its keys are not Jupyter's
  const line = element(root, "div", { class: "line" });
  const badge = element(line, "span", { class: "badge" });
  const status = element(line, "span", { class: "status" });
  element(root, "div", { class: "gone" }, GONE);
  return { root, canvas, badge, status };
}

// Take a frame into the view; the steps and the zoom of another run are forgotten
function keepFrame(view, frame) {
  const { steps } = view;
  if (frame?.serial !== view.frame?.serial) {
    steps.length = 0;
    view.zoom = null;
  }
  const last = steps.at(-1)?.number ?? -1;
  steps.push(...(frame?.steps ?? []).filter((step) => step.number > last));
  if (steps.length > MOST_STEPS) steps.splice(0, steps.length - MOST_STEPS / 2);
  view.frame = frame;
}

// Say that the kernel is busy where it does not answer a button of this panel in time; `answered`
// is called once it does, however late
function sayWhereBusy({ root, status }, answered) {
  let timer = 0;
  const end = () => clearTimeout(timer);
  const answers = new MutationObserver(answered);
  const listen = (event) => {
    const panel = root.closest(".jp-OutputArea-output, .output_subarea") ?? root.parentElement;
    const button = event.target.closest?.(".jupyter-button");
    if (!button || !panel?.contains(button)) return;
    end();
    timer = setTimeout(() => (status.textContent = BUSY), PATIENCE_MS);
    answers.observe(button, { attributes: true, attributeFilter: ["disabled"] }); // its answer
  };
  document.addEventListener("click", listen, true);
  const stop = () => {
    end();
    document.removeEventListener("click", listen, true);
    answers.disconnect();
  };
  return { end, stop };
}

export default { render };
