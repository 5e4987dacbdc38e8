// The live view: two stacked axes on one clock, drawn from one float32 frame (see live.py).
// Above, when the device was busy: the teeth. Below, the share of time it was, over the run.

const HEADER = 5, HEIGHT = 248, LEFT = 50, RIGHT = 14;
const TOP = { y: 26, height: 66 }, BOTTOM = { y: 140, height: 66 };

function readFrame(view) {
  if (!view || view.byteLength < 4 * HEADER) return null;
  const bytes = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
  const values = new Float32Array(bytes);
  const [teeth, points, start, end, span] = values;
  const body = values.subarray(HEADER);
  return {
    start, end, span,
    teeth: body.subarray(0, 2 * teeth),
    curve: body.subarray(2 * teeth, 2 * (teeth + points)),
  };
}

function palette(element) {
  const style = getComputedStyle(element);
  const read = (name, fallback) => style.getPropertyValue(name).trim() || fallback;
  return {
    text: read("--jp-ui-font-color1", "#1f1f1f"),
    muted: read("--jp-ui-font-color2", "#616161"),
    grid: read("--jp-border-color2", "#e0e0e0"),
    busy: read("--labkit-busy", "#009e73"),
    before: read("--jp-ui-font-color3", "#9e9e9e"),
    font: read("--jp-ui-font-family", "system-ui, sans-serif"),
  };
}

// A round distance between ticks, so that about `wanted` of them fit
function tickStep(span, wanted) {
  const rough = span / wanted, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
}

function text(g, words, x, y, colour, align = "left", weight = "") {
  g.fillStyle = colour;
  g.textAlign = align;
  g.font = `${weight} 12px ${g.family}`;
  g.fillText(words, x, y);
}

function axes(g, box, from, to, title, colours) {
  const x = (s) => box.left + ((s - from) / (to - from)) * box.width;
  const y = (percent) => box.y + box.height * (1 - percent / 100);
  g.lineWidth = 1;
  g.strokeStyle = colours.grid;
  for (const percent of [0, 50, 100]) {
    const line = Math.round(y(percent)) + 0.5;
    g.beginPath();
    g.moveTo(box.left, line);
    g.lineTo(box.left + box.width, line);
    g.stroke();
    text(g, `${percent} %`, box.left - 6, y(percent) + 4, colours.muted, "right");
  }
  const step = tickStep(to - from, Math.max(2, box.width / 90));
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-6));
  for (let k = Math.ceil(from / step - 1e-4); k * step <= to + step * 1e-3; k++) {
    const at = x(k * step);
    g.beginPath();
    g.moveTo(at, box.y + box.height);
    g.lineTo(at, box.y + box.height + 4);
    g.stroke();
    text(g, (k * step).toFixed(digits), at, box.y + box.height + 16, colours.muted, "center");
  }
  text(g, title, box.left, box.y - 10, colours.text, "left", "600");
  return { x, y };
}

function drawTeeth(g, place, frame, colours) {
  g.fillStyle = colours.busy;
  const low = place.y(0), high = place.y(100);
  let idleFrom = NaN; // unknown until a busy interval has ended: a gap stays empty
  for (let i = 0; i < frame.teeth.length; i += 2) {
    const from = Math.max(frame.teeth[i], 0) + frame.start, to = frame.teeth[i + 1] + frame.start;
    if (idleFrom <= from) g.fillRect(place.x(idleFrom), low - 1.5, place.x(from) - place.x(idleFrom), 1.5);
    if (to >= from) g.fillRect(place.x(from), high, Math.max(place.x(to) - place.x(from), 0.75), low - high);
    idleFrom = to;
  }
}

function drawCurve(g, place, curve, colour, width, dash) {
  g.strokeStyle = colour;
  g.lineWidth = width;
  g.lineJoin = "round";
  g.setLineDash(dash);
  g.beginPath();
  let pen = false;
  for (let i = 0; i < curve.length; i += 2) {
    const known = !Number.isNaN(curve[i + 1]);
    if (known) g[pen ? "lineTo" : "moveTo"](place.x(curve[i]), place.y(curve[i + 1]));
    pen = known;
  }
  g.stroke();
  g.setLineDash([]);
}

function legend(g, name, right, y, colours) {
  const item = (x, words, colour, width, dash) => {
    text(g, words, x, y, colours.muted, "right");
    const end = x - g.measureText(words).width - 6;
    drawCurve(g, { x: (v) => v, y: (v) => v }, [end - 22, y - 4, end, y - 4], colour, width, dash);
    return end - 36;
  };
  const x = item(right, name, colours.before, 1.5, [5, 3]);
  item(x, "this run", colours.busy, 2, []);
}

function draw(canvas, model) {
  const width = canvas.clientWidth, ratio = window.devicePixelRatio || 1;
  if (!width) return;
  const pixels = [Math.round(width * ratio), Math.round(HEIGHT * ratio)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
  const g = canvas.getContext("2d"), colours = palette(canvas), device = model.get("device");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, HEIGHT);
  g.family = colours.font;
  const frame = readFrame(model.get("frame")), before = readFrame(model.get("overlay"));
  const inner = { left: LEFT, width: width - LEFT - RIGHT };
  const from = frame?.start ?? 0, to = frame?.end ?? 2;
  const all = Math.max(frame?.span ?? 0, before?.span ?? 0, 0.5);

  const seconds = to - from < 1 ? `${Math.round(1000 * (to - from))} ms` : `${+(to - from).toFixed(1)} s`;
  const top = axes(g, { ...inner, ...TOP }, from, to, `${device} busy, last ${seconds}`, colours);
  const wide = inner.width > 460, whole = wide ? ", whole run" : ""; // room for words
  const low = axes(g, { ...inner, ...BOTTOM }, 0, all, `${device} utilization${whole}`, colours);
  text(g, "seconds since the first batch", width - RIGHT, HEIGHT - 8, colours.muted, "right");
  if (frame) {
    g.globalAlpha = 0.12; // where the stretch above lies in the run
    g.fillStyle = colours.busy;
    g.fillRect(low.x(from), BOTTOM.y, low.x(Math.min(to, all)) - low.x(from), BOTTOM.height);
    g.globalAlpha = 1;
  }
  g.save();
  g.beginPath();
  g.rect(LEFT, 0, inner.width, HEIGHT);
  g.clip();
  if (frame) drawTeeth(g, top, frame, colours);
  if (before) drawCurve(g, low, before.curve, colours.before, 1.5, [5, 3]);
  if (frame) drawCurve(g, low, frame.curve, colours.busy, 2, []);
  g.restore();
  if (before && wide) legend(g, model.get("overlay_name"), width - RIGHT, BOTTOM.y - 10, colours);
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
  let frames = 0, asked = 0;
  const paint = () => {
    asked = 0;
    draw(canvas, model);
  };
  const later = () => (asked ||= requestAnimationFrame(paint));
  const words = () => {
    status.textContent = model.get("status");
    badge.textContent = model.get("badge");
    canvas.setAttribute("aria-label", `${model.get("device")} busy over time: ${model.get("status")}`);
  };
  const arrived = () => {
    root.dataset.frames = ++frames; // what tests wait for
    later();
  };
  const state = () => (root.dataset.running = model.get("running"));
  const listeners = [
    ["change:tick", arrived], ["change:overlay change:overlay_name change:device", later],
    ["change:status change:badge", words], ["change:running", state],
  ];
  for (const [names, handler] of listeners) model.on(names, handler);
  const sized = new ResizeObserver(later);
  sized.observe(root);
  const themed = new MutationObserver(later);
  themed.observe(document.body, { attributes: true });
  const unwatch = watchKernel(root, status, model);
  words();
  state();
  later();
  return () => {
    unwatch();
    for (const [names, handler] of listeners) model.off(names, handler);
    sized.disconnect();
    themed.disconnect();
    cancelAnimationFrame(asked);
  };
}

export default { render };
