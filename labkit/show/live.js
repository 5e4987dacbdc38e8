// The live view in the page: pointers, keys and the kernel's messages; live_draw.js stands before it.

const MOST_STEPS = 200000, DRAG_PX = 5;

// Hover, and zoom: drag a stretch, wheel (once clicked on) or keys; double click or Escape resets
function hands(canvas, view, later) {
  const placeAt = (y) => ["top", "low"].find((name) => {
    const box = view[name]?.box;
    return box && y >= box.y - 4 && y <= box.y + box.height + 18;
  });
  const zoomTo = (from, to) => {
    const least = 1e-5, end = Math.max(view.frame?.span ?? 0, 0.01);
    const width = Math.min(Math.max(to - from, least), end), start = Math.min(Math.max(from, 0), end - width);
    view.zoom = width >= end * 0.999 && to - from > end ? null : [start, start + width];
    later();
  };
  const scaled = (factor, at) => {
    const { from, to } = view.top;
    zoomTo(at - (at - from) * factor, at + (to - at) * factor);
  };
  const reset = () => {
    view.zoom = null;
    later();
  };
  const on = {
    pointerdown(event) {
      const place = placeAt(event.offsetY);
      if (!place) return;
      canvas.setPointerCapture(event.pointerId);
      view.pointer = { place, x: event.offsetX, from: event.offsetX };
    },
    pointermove(event) {
      const held = view.pointer?.from;
      const place = held === undefined ? placeAt(event.offsetY) : view.pointer.place;
      const box = view[place]?.box;
      const x = box && Math.min(Math.max(event.offsetX, box.left), box.left + box.width);
      view.pointer = box && { place, x, from: held };
      later();
    },
    pointerup() {
      const { pointer } = view;
      if (pointer?.from === undefined) return;
      const { place, x, from } = pointer, s = view[place].s;
      view.pointer = { place, x };
      if (Math.abs(x - from) > DRAG_PX) zoomTo(s(Math.min(x, from)), s(Math.max(x, from)));
      later();
    },
    dblclick: reset,
    pointerleave: (event) => event.pointerType !== "touch" && ((view.pointer = null), later()),
    pointercancel: () => ((view.pointer = null), later()),
    wheel(event) {
      // not in the way of someone who only scrolls past
      if (!view.top || !(event.ctrlKey || document.activeElement === canvas)) return;
      event.preventDefault();
      scaled(1.2 ** Math.sign(event.deltaY), view.top.s(event.offsetX));
    },
    keydown(event) {
      if (!view.top) return;
      const { from, to } = view.top, third = (to - from) / 3;
      const act = {
        "+": () => scaled(0.5, (from + to) / 2), "-": () => scaled(2, (from + to) / 2),
        ArrowLeft: () => zoomTo(from - third, to - third), Escape: reset,
        ArrowRight: () => zoomTo(from + third, to + third),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      event.stopPropagation(); // Jupyter has keys of its own
      act();
    },
  };
  for (const [name, act] of Object.entries(on)) canvas.addEventListener(name, act, { passive: false });
}
function element(parent, tag, name) {
  const made = document.createElement(tag);
  made.className = name;
  parent.append(made);
  return made;
}

// What the page says by itself where the kernel does not: that it is busy, or gone (see live.css)
const BUSY = "The kernel is busy with another cell: what you pressed waits until that is done.";
const GONE = "The kernel behind this is gone or was restarted: run this cell again.";
const PATIENCE_MS = 1500;

function watchKernel(root, status, model) {
  element(root, "div", "gone").textContent = GONE;
  let timer = 0;
  const pressed = (event) => {
    const panel = root.closest(".jp-OutputArea-output, .output_subarea") ?? root.parentElement;
    if (!panel?.contains(event.target) || !event.target.closest?.("button")) return;
    clearTimeout(timer);
    timer = setTimeout(() => (status.textContent = BUSY), PATIENCE_MS);
  };
  const answered = () => clearTimeout(timer);
  const events = "change:status change:running change:tick";
  document.addEventListener("click", pressed, true);
  model.on(events, answered);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("click", pressed, true);
    model.off(events, answered);
  };
}

function render({ model, el }) {
  const root = element(el, "div", "labkit-live");
  const canvas = element(root, "canvas", "");
  const line = element(root, "div", "line");
  const badge = element(line, "span", "badge"), status = element(line, "span", "status");
  canvas.setAttribute("role", "img");
  canvas.tabIndex = 0;
  canvas.dataset.lmSuppressShortcuts = "true"; // its keys are not Jupyter's
  const view = { steps: [], frame: null, before: null, zoom: null, pointer: null };
  let frames = 0, asked = 0;
  const paint = () => {
    asked = 0;
    draw(canvas, model, view);
    root.dataset.said = view.said ?? ""; // what tests read
    root.dataset.zoom = view.zoom?.map((s) => s.toFixed(4)) ?? "";
  };
  const later = () => (asked ||= requestAnimationFrame(paint));
  const words = () => {
    status.textContent = status.title = model.get("status");
    badge.textContent = model.get("badge");
    canvas.setAttribute("aria-label", `${model.get("device")} busy over time: ${model.get("status")}`);
  };
  const taken = () => {
    const { steps } = view, frame = readFrame(model.get("frame"));
    if (frame?.serial !== view.frame?.serial) [steps.length, view.zoom] = [0, null]; // another run
    const known = steps.at(-1)?.n ?? -1;
    steps.push(...(frame?.steps ?? []).filter((step) => step.n > known));
    if (steps.length > MOST_STEPS) steps.splice(0, steps.length - MOST_STEPS / 2);
    view.frame = frame;
    later();
  };
  const compared = () => {
    view.before = readFrame(model.get("overlay"));
    view.beforeName = model.get("overlay_name");
    later();
  };
  const arrived = () => {
    root.dataset.frames = ++frames; // what tests wait for
    taken();
  };
  const sizes = () => {
    const height = model.get("height"); // at the figure's full width, whose shape it then has
    root.style.aspectRatio = height ? `900 / ${height}` : "";
    root.style.height = height ? "auto" : "";
    later();
  };
  const listeners = [
    ["change:tick", arrived], ["change:frame", () => model.get("frame").byteLength || taken()],
    ["change:device change:expected", later], ["change:overlay change:overlay_name", compared],
    ["change:status change:badge", words], ["change:height", sizes],
  ];
  for (const [names, handler] of listeners) model.on(names, handler);
  const sized = new ResizeObserver(later);
  sized.observe(root);
  const themed = new MutationObserver(later);
  themed.observe(document.body, { attributes: true });
  const unwatch = watchKernel(root, status, model);
  hands(canvas, view, later);
  for (const start of [words, sizes, taken, compared]) start();
  return () => {
    unwatch();
    for (const [names, handler] of listeners) model.off(names, handler);
    sized.disconnect();
    themed.disconnect();
    cancelAnimationFrame(asked);
  };
}

export default { render };
