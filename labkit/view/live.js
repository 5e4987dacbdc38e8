// The live view in the page: pointers, keys and the kernel's messages; live_draw.js stands before it.

const MOST_STEPS = 200000, DRAG_PX = 5, PATIENCE_MS = 1500;
// What the page says by itself: that the kernel does not answer yet, or is gone (see live.css)
const BUSY = "The kernel is busy with another cell: what you pressed waits until that is done.";
const GONE = "The kernel behind this is gone or was restarted: run this cell again.";

// Hover, and zoom: drag a stretch, wheel (once clicked on) or keys; double click or Escape resets
function hands(canvas, view, later) {
  const placeAt = (y) => ["top", "low"].find((name) => {
    const box = view[name]?.box;
    return box && y >= box.y - 4 && y <= box.y + box.height + 18;
  });
  const show = (zoom) => {
    view.zoom = zoom;
    later();
  };
  const point = (pointer) => {
    view.pointer = pointer;
    later();
  };
  const zoomTo = (from, to) => {
    const end = Math.max(view.frame?.span ?? 0, 0.01), width = clamp(to - from, 1e-5, end);
    const start = clamp(from, 0, end - width);
    show(width >= end * 0.999 && to - from > end ? null : [start, start + width]);
  };
  const scaled = (factor, at) =>
    zoomTo(at - (at - view.top.from) * factor, at + (view.top.to - at) * factor);
  const on = {
    pointerdown(event) {
      const place = placeAt(event.offsetY);
      if (!place) return;
      canvas.setPointerCapture(event.pointerId);
      view.pointer = { place, x: event.offsetX, from: event.offsetX };
    },
    pointermove(event) {
      const from = view.pointer?.from, place = from === undefined ? placeAt(event.offsetY) : view.pointer.place;
      const box = view[place]?.box;
      point(box && { place, from, x: clamp(event.offsetX, box.left, box.left + box.width) });
    },
    pointerup() {
      if (view.pointer?.from === undefined) return;
      const { place, x, from } = view.pointer, s = view[place].s;
      if (Math.abs(x - from) > DRAG_PX) zoomTo(s(Math.min(x, from)), s(Math.max(x, from)));
      point({ place, x });
    },
    pointerleave: (event) => event.pointerType !== "touch" && point(null),
    pointercancel: () => point(null),
    dblclick: () => show(null),
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
        "+": () => scaled(0.5, (from + to) / 2), "-": () => scaled(2, (from + to) / 2), Escape: () => show(null),
        ArrowLeft: () => zoomTo(from - third, to - third), ArrowRight: () => zoomTo(from + third, to + third),
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

function render({ model, el }) {
  const root = element(el, "div", "labkit-live");
  const canvas = element(root, "canvas", ""), foot = element(root, "div", "line");
  const badge = element(foot, "span", "badge"), status = element(foot, "span", "status");
  element(root, "div", "gone").textContent = GONE;
  canvas.setAttribute("role", "img");
  canvas.tabIndex = 0;
  canvas.dataset.lmSuppressShortcuts = "true"; // its keys are not Jupyter's
  const view = { steps: [], frame: null, before: null, zoom: null, pointer: null };
  let frames = 0, asked = 0, timer = 0;
  const paint = () => {
    asked = 0;
    draw(canvas, model, view);
    root.dataset.said = view.said ?? ""; // what tests read
    root.dataset.zoom = view.zoom?.map((s) => s.toFixed(4)) ?? "";
  };
  const later = () => (asked ||= requestAnimationFrame(paint));
  const words = () => {
    clearTimeout(timer);
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
    clearTimeout(timer);
    taken();
  };
  const sizes = () => {
    const height = model.get("height"); // at the figure's full width, whose shape it then has
    root.style.aspectRatio = height ? `900 / ${height}` : "";
    root.style.minHeight = height ? "auto" : "";
    later();
  };
  const pressed = (event) => {
    const panel = root.closest(".jp-OutputArea-output, .output_subarea") ?? root.parentElement;
    const button = event.target.closest?.(".jupyter-button"); // Run or Stop: it answers by disabling it
    if (!button || !panel?.contains(button)) return;
    clearTimeout(timer);
    timer = setTimeout(() => (status.textContent = BUSY), PATIENCE_MS);
    answered.observe(button, { attributes: true, attributeFilter: ["disabled"] });
  };
  const answered = new MutationObserver(words); // however late, the line is put right again
  const listeners = [
    ["change:tick", arrived], ["change:frame", () => model.get("frame").byteLength || taken()],
    ["change:device change:expected", later], ["change:overlay change:overlay_name", compared],
    ["change:status change:badge change:running", words], ["change:height", sizes],
  ];
  for (const [names, handler] of listeners) model.on(names, handler);
  document.addEventListener("click", pressed, true);
  const sized = new ResizeObserver(later), themed = new MutationObserver(later);
  sized.observe(canvas);
  themed.observe(document.body, { attributes: true });
  hands(canvas, view, later);
  for (const start of [words, sizes, taken, compared]) start();
  return () => {
    clearTimeout(timer);
    document.removeEventListener("click", pressed, true);
    for (const [names, handler] of listeners) model.off(names, handler);
    sized.disconnect();
    answered.disconnect();
    themed.disconnect();
    cancelAnimationFrame(asked);
  };
}

export default { render };
