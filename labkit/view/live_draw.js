// The drawing of the live view: float32 frames (see live_frame.py) drawn as the intervals of the last steps, the busy
// share over the whole run, and the mean step by what its time went to; as the final figure does.
// Steps are kept as they come, so that hovering and zooming ask nothing of the kernel.

const HEADER = 14, ROW = 9, LEFT = 74, RIGHT = 14;
const PARTS = { wait: "waiting for data", copy: "copy", compute: "compute", other: "other" };
const LANES = [["busy", "compute", 0.56], ["copy", "copy", 0.16], ["waiting", "wait", 0.16]];
const OURS = { compute: "#009e73", wait: "#e69f00", copy: "#aa4499", other: "#bbbbbb" }; // as in style.py
const COLOURS = { // of the page: [its variable, what stands in for it]
  text: ["--jp-ui-font-color1", "#1f1f1f"], muted: ["--jp-ui-font-color2", "#616161"],
  paper: ["--jp-layout-color1", "#ffffff"], grid: ["--jp-border-color2", "#e0e0e0"],
  before: ["--jp-ui-font-color3", "#9e9e9e"], font: ["--jp-ui-font-family", "system-ui, sans-serif"],
};
const ms = (value) => value.toFixed(value >= 99.5 ? 0 : value >= 0.95 ? 1 : 2);
const total = (of) => of.wait + of.copy + of.compute + of.other;
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function readFrame(view) {
  if (!view || view.byteLength < 4 * HEADER) return null;
  const values = new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  const [rows, points, serial, start, rest, width, span, done, warm, micro, wait, copy, compute, other] = values;
  const zero = start + rest, body = values.subarray(HEADER), steps = [];
  for (let at = 0, n = done - rows; n < done; at += ROW) {
    const [from, to, asked, ready, copied, copyEnd, waiting, copying, rest] = body.subarray(at, at + ROW);
    steps.push({
      n: n++, compute: [zero + from, zero + to], wait: [zero + asked, zero + ready],
      copy: [zero + copied, zero + copyEnd], to: zero + to,
      ms: { wait: waiting, copy: copying, compute: 1e3 * (to - from), other: rest },
    });
  }
  const curve = [];
  for (let at = ROW * rows; at < ROW * rows + 2 * points; at += 2) curve.push([body[at], body[at + 1]]);
  const means = { wait, copy, compute, other };
  return { micro, serial, start: zero, end: zero + width, span, done, warm, steps, curve, means };
}

// The first of `steps` that ends after `s`
function stepAt(steps, s) {
  let low = 0, high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle].to < s) low = middle + 1;
    else high = middle;
  }
  return low;
}

function text(g, words, x, y, colour, align = "left", weight = "") {
  g.fillStyle = colour;
  g.textAlign = align;
  g.font = `${weight} 12px ${g.family}`;
  g.fillText(words, x, y);
}

function fill(g, x, y, wide, tall, colour, alpha = 1) {
  g.globalAlpha = alpha;
  g.fillStyle = colour;
  g.fillRect(x, y, wide, tall);
  g.globalAlpha = 1;
}

function line(g, points, colour, width = 1, dash = []) {
  g.strokeStyle = colour;
  g.lineWidth = width;
  g.lineJoin = "round";
  g.setLineDash(dash);
  g.beginPath();
  let pen = false;
  for (const [x, y] of points) {
    const known = !Number.isNaN(y);
    if (known) g[pen ? "lineTo" : "moveTo"](x, y);
    pen = known;
  }
  g.stroke();
  g.setLineDash([]);
}

// Draw a box's x axis; return how seconds (or ms) become pixels and pixels seconds
function xAxis(g, box, from, to, colours) {
  const x = (s) => box.left + ((s - from) / (to - from)) * box.width, foot = box.y + box.height;
  line(g, [[box.left, foot + 0.5], [box.left + box.width, foot + 0.5]], colours.grid);
  const rough = (to - from) / Math.max(2, box.width / 90), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-6));
  for (let k = Math.ceil(from / step - 1e-4); k * step <= to + step * 1e-3; k++) {
    const at = x(k * step);
    line(g, [[at, foot], [at, foot + 4]], colours.grid);
    text(g, (k * step).toFixed(digits), at, foot + 16, colours.muted, "center");
  }
  const s = (at) => from + ((at - box.left) / box.width) * (to - from);
  return { x, s, from, to, box };
}

function drawLanes(g, { box, from, to, x }, steps, colours) {
  let y = box.y;
  for (const [name, part, share] of LANES) {
    const tall = share * box.height;
    if (tall > 9) text(g, name, box.left - 8, y + tall / 2 + 4, colours.muted, "right");
    let drawn = -1;
    for (let i = stepAt(steps, from); i < steps.length; i++) {
      const [start, end] = steps[i][part];
      if (start > to && steps[i].wait[0] > to) break;
      const left = x(Math.max(start, from)), right = x(Math.min(end, to));
      if (end <= start || right <= left || right < drawn + 0.25) continue;
      drawn = Math.max(right, left + 0.75);
      fill(g, left, y, drawn - left, tall, colours[part]);
    }
    y += tall + 0.06 * box.height;
  }
}

function drawWhole(g, box, view, model, from, to, colours) {
  const { frame, before } = view, axis = xAxis(g, box, 0, Math.max(frame?.span ?? 0, before?.span ?? 0, 0.5), colours);
  const right = box.left + box.width, y = (percent) => box.y + box.height * (1 - percent / 100);
  for (const percent of [0, 50, 100]) {
    line(g, [[LEFT, y(percent)], [right, y(percent)]], colours.grid);
    text(g, `${percent} %`, LEFT - 8, y(percent) + 4, colours.muted, "right");
  }
  g.save();
  g.beginPath();
  g.rect(LEFT, box.y - 2, box.width, box.height + 4);
  g.clip();
  const points = ({ curve }) => curve.map(([s, percent]) => [axis.x(s), y(percent)]);
  const [least, guess, most] = (model.get("expected") ?? []).map((share) => y(100 * share));
  if (guess !== undefined) {
    fill(g, LEFT, most, box.width, least - most, colours.compute, 0.25);
    line(g, [[LEFT, guess], [right, guess]], colours.compute, 1.5, [2, 4]);
    text(g, "expected", right - 4, guess - 4, colours.text, "right");
  }
  if (before) line(g, points(before), colours.before, 1.5, [5, 3]);
  if (frame) { // the warm-up, and where the stretch above lies in the run
    fill(g, LEFT, box.y, axis.x(frame.warm) - LEFT, box.height, colours.muted, 0.14);
    fill(g, axis.x(from), box.y, axis.x(Math.min(to, axis.to)) - axis.x(from), box.height, colours.compute, 0.14);
    line(g, points(frame), colours.compute, 2);
    const busy = y((100 * frame.means.compute) / total(frame.means));
    line(g, [[axis.x(frame.warm), busy], [axis.x(frame.span), busy]], colours.text, 1, [4, 3]);
  }
  g.restore();
  return axis;
}

function drawMeans(g, box, { frame, before }, width, colours) {
  // a micro-batch beside a whole batch compares nothing: then all that an update takes
  const apart = frame && before && frame.micro !== before.micro;
  const parts = Object.keys(PARTS), means = (of) =>
    Object.fromEntries(parts.map((part) => [part, of ? of.means[part] * (apart ? of.micro : 1) : 0]));
  const rows = [[apart ? "update" : "mean step", means(frame)], ...(before ? [["before", means(before)]] : [])];
  let x = box.width > 250 ? LEFT : 4;
  const now = rows[0][1], whole = total(now);
  for (const part of parts) {
    const share = whole > 0 ? ` ${ms(now[part])} ms (${Math.round(100 * now[part] / whole)} %)` : "";
    const words = box.width > 620 ? PARTS[part] + share : box.width > 440 ? PARTS[part] : part; // as there is room
    fill(g, x, box.y - 17, 14, 10, colours[part]);
    text(g, words, x + 19, box.y - 8, colours.text);
    x += 19 + g.measureText(words).width + 14;
  }
  const longest = Math.max(...rows.map(([, of]) => total(of)));
  if (!(longest > 0)) return; // nothing is measured yet, so there is no scale either
  const place = xAxis(g, { ...box, width: box.width - 70 }, 0, longest, colours);
  rows.forEach(([name, of], row) => {
    if (!(total(of) > 0)) return;
    const tall = box.height / rows.length - 4, y = box.y + row * (tall + 4);
    text(g, name, box.left - 8, y + tall / 2 + 4, colours.muted, "right");
    let done = 0;
    for (const part of parts) {
      fill(g, place.x(done), y, place.x(of[part]) - place.x(0), tall, colours[part]);
      done += of[part];
    }
    text(g, `${ms(done)} ms`, place.x(done) + 6, y + tall / 2 + 4, colours.text);
  });
}

// Say what is under the pointer; `place` is the axis it is over
function readOut(view, place, at) {
  const s = place.s(at);
  if (place === view.low) {
    const found = [["", view.frame], [`${view.beforeName}: `, view.before]].map(([name, frame]) => {
      const near = frame?.curve.reduce((a, b) => (Math.abs(b[0] - s) < Math.abs(a[0] - s) ? b : a), [Infinity, NaN]);
      return !near || s > frame.span || Number.isNaN(near[1]) ? "" : `${name}busy ${near[1].toFixed(0)} %`;
    });
    return [`${s.toFixed(2)} s`, ...found.filter(Boolean)].join(" · ");
  }
  const step = view.steps[stepAt(view.steps, s)];
  if (!step || s < Math.min(step.wait[0], step.compute[0]) || Number.isNaN(step.ms.wait)) return "";
  const all = total(step.ms), busy = Math.round((100 * step.ms.compute) / all);
  const parts = Object.keys(PARTS).map((part) => `${part} ${ms(step.ms[part])}`).join(", ");
  return `${s.toFixed(3)} s · step ${step.n + 1}: ${ms(all)} ms, busy ${busy} % · ${parts} ms`;
}

function drawPointer(g, view, colours, width) {
  view.said = "";
  if (!view.pointer) return;
  const { place, x, from } = view.pointer, { box } = view[place];
  if (from !== undefined) fill(g, Math.min(x, from), box.y, Math.abs(x - from), box.height, colours.text, 0.18);
  line(g, [[x, box.y], [x, box.y + box.height]], colours.text, 1, [2, 2]);
  if (!(view.said = readOut(view, view[place], x))) return;
  g.font = `12px ${g.family}`;
  const wide = g.measureText(view.said).width + 12, left = Math.max(2, Math.min(x + 10, width - wide - 2));
  fill(g, left, box.y + 2, wide, 20, colours.paper);
  g.strokeStyle = colours.muted;
  g.strokeRect(left + 0.5, box.y + 2.5, wide, 20);
  text(g, view.said, left + 6, box.y + 16, colours.text);
}

function draw(canvas, model, view) {
  const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
  if (!width || !height) return;
  const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
  const g = canvas.getContext("2d"), device = model.get("device"), style = getComputedStyle(canvas);
  const read = ([name, otherwise]) => style.getPropertyValue(name).trim() || otherwise;
  const page = Object.entries(COLOURS).map(([what, where]) => [what, read(where)]);
  const colours = { ...OURS, ...Object.fromEntries(page) };
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  g.family = colours.font;
  const { frame, before } = view, wide = width > 520; // room for words
  const inner = { left: LEFT, width: width - LEFT - RIGHT };
  const bars = 16 * (before ? 2 : 1) + 10, room = Math.max(60, height - bars - 150);
  const lanes = { ...inner, y: 24, height: 0.46 * room };
  const whole = { ...inner, y: lanes.y + lanes.height + 50, height: 0.54 * room };
  const mean = { ...inner, y: whole.y + whole.height + 46, height: bars };
  const [from, to] = view.zoom ?? [frame?.start ?? 0, frame?.end ?? 2];
  const span = to - from < 1 ? `${ms(1e3 * (to - from))} ms` : `${+(to - from).toFixed(1)} s`;
  const hint = view.zoom ? " (double click: follow)" : wide ? " (drag to zoom)" : "";
  text(g, `${device}: ${view.zoom ? "" : "last "}${span}${hint}`, LEFT, 14, colours.text, "left", "600");
  view.top = xAxis(g, lanes, from, to, colours);
  drawLanes(g, view.top, view.steps, colours);
  text(g, `${device} busy${wide ? ", whole run" : ""}`, LEFT, whole.y - 8, colours.text, "left", "600");
  if (before && wide) text(g, `- - ${view.beforeName}`, width - RIGHT, whole.y - 8, colours.muted, "right");
  view.low = drawWhole(g, whole, view, model, from, to, colours);
  drawMeans(g, mean, view, width, colours);
  drawPointer(g, view, colours, width);
}
