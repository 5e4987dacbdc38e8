// The drawing of the live view, from float32 frames (see live.py): the intervals of the last steps, the busy
// share over the whole run, and the mean step by what its time went to; as the final figure does.
// Steps are kept as they come, so that hovering and zooming ask nothing of the kernel.

const HEADER = 14, ROW = 9, LEFT = 74, RIGHT = 14;
const PARTS = { wait: "waiting for data", copy: "copy", compute: "compute", other: "other" };
const LANES = [["busy", "compute", 0.56], ["copy", "copy", 0.16], ["waiting", "wait", 0.16]];

function readFrame(view) {
  if (!view || view.byteLength < 4 * HEADER) return null;
  const bytes = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
  const values = new Float32Array(bytes);
  const [rows, points, serial, start, rest, width, span, done, warm, micro, ...means] = values.subarray(0, HEADER);
  const zero = start + rest, body = values.subarray(HEADER), steps = [];
  for (let at = 0, n = done - rows; n < done; at += ROW) {
    const [from, to, asked, ready, copied, copyEnd, ...ms] = body.subarray(at, at + ROW);
    steps.push({
      n: n++, compute: [zero + from, zero + to], wait: [zero + asked, zero + ready],
      copy: [zero + copied, zero + copyEnd], to: zero + to,
      ms: { wait: ms[0], copy: ms[1], compute: 1e3 * (to - from), other: ms[2] },
    });
  }
  const [wait, copy, compute, other] = means;
  const curve = body.subarray(ROW * rows, ROW * rows + 2 * points);
  return { micro, serial, start: zero, end: zero + width, span, done, warm, steps, curve,
           means: { wait, copy, compute, other } };
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

const COLOURS = {
  text: ["--jp-ui-font-color1", "#1f1f1f"], muted: ["--jp-ui-font-color2", "#616161"],
  paper: ["--jp-layout-color1", "#ffffff"], grid: ["--jp-border-color2", "#e0e0e0"],
  compute: ["--labkit-busy", "#009e73"], wait: ["--labkit-wait", "#e69f00"],
  copy: ["--labkit-copy", "#aa4499"], other: ["--labkit-other", "#bbbbbb"],
  before: ["--jp-ui-font-color3", "#9e9e9e"], font: ["--jp-ui-font-family", "system-ui, sans-serif"],
};

function palette(element) {
  const style = getComputedStyle(element), read = ([name, otherwise]) => style.getPropertyValue(name).trim() || otherwise;
  return Object.fromEntries(Object.entries(COLOURS).map(([what, where]) => [what, read(where)]));
}

// A round distance between ticks, so that about `wanted` of them fit
function tickStep(span, wanted) {
  const rough = span / wanted, power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
}

const ms = (value) => value.toFixed(value >= 99.5 ? 0 : value >= 0.95 ? 1 : 2);
const parts = (of) => Object.keys(PARTS).map((part) => `${part} ${ms(of[part])}`).join(", ");
const total = (of) => of.wait + of.copy + of.compute + of.other;

function text(g, words, x, y, colour, align = "left", weight = "") {
  g.fillStyle = colour;
  g.textAlign = align;
  g.font = `${weight} 12px ${g.family}`;
  g.fillText(words, x, y);
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
  const step = tickStep(to - from, Math.max(2, box.width / 90));
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-6));
  for (let k = Math.ceil(from / step - 1e-4); k * step <= to + step * 1e-3; k++) {
    const at = x(k * step);
    line(g, [[at, foot], [at, foot + 4]], colours.grid);
    text(g, (k * step).toFixed(digits), at, foot + 16, colours.muted, "center");
  }
  const s = (at) => from + ((at - box.left) / box.width) * (to - from);
  return { x, s, from, to, box };
}

function drawLanes(g, place, steps, colours) {
  const { box, from, to } = place;
  const gap = 0.06 * box.height;
  let y = box.y;
  for (const [name, part, share] of LANES) {
    const tall = share * box.height;
    if (tall > 9) text(g, name, box.left - 8, y + tall / 2 + 4, colours.muted, "right");
    g.fillStyle = colours[part];
    let drawn = -1;
    for (let i = stepAt(steps, from); i < steps.length; i++) {
      const [start, end] = steps[i][part];
      if (start > to && steps[i].wait[0] > to) break;
      const left = place.x(Math.max(start, from)), right = place.x(Math.min(end, to));
      if (end <= start || right <= left || right < drawn + 0.25) continue;
      drawn = Math.max(right, left + 0.75);
      g.fillRect(left, y, drawn - left, tall);
    }
    y += tall + gap;
  }
}

function drawBars(g, box, rows, colours) {
  const most = Math.max(...rows.map(([, means]) => total(means)), 1e-9);
  const place = xAxis(g, { ...box, width: box.width - 70 }, 0, most, colours);
  rows.forEach(([name, means], row) => {
    const tall = box.height / rows.length - 4, y = box.y + row * (tall + 4);
    text(g, name, box.left - 8, y + tall / 2 + 4, colours.muted, "right");
    let done = 0;
    for (const part of Object.keys(PARTS)) {
      g.fillStyle = colours[part];
      g.fillRect(place.x(done), y, place.x(done + means[part]) - place.x(done), tall);
      done += means[part];
    }
    text(g, `${ms(done)} ms`, place.x(done) + 6, y + tall / 2 + 4, colours.text);
  });
}

function legend(g, means, left, y, width, colours) {
  const entries = Object.entries(PARTS), whole = means && total(means);
  let x = left;
  for (const [part, name] of entries) {
    const share = whole > 0 ? ` ${ms(means[part])} ms (${Math.round(100 * means[part] / whole)} %)` : "";
    const words = width > 620 ? name + share : width > 380 ? name : part; // as there is room
    g.fillStyle = colours[part];
    g.fillRect(x, y - 9, 14, 10);
    text(g, words, x + 19, y, colours.text);
    x += 19 + g.measureText(words).width + 14;
  }
}

// Say what is under the pointer; `place` is the axis it is over
function readOut(view, place, at) {
  const s = place.s(at);
  if (place === view.low) {
    const found = [["", view.frame], [`${view.beforeName}: `, view.before]].map(([name, frame]) => {
      const curve = frame?.curve ?? [];
      let near = -1;
      for (let i = 0; i < curve.length; i += 2)
        if (near < 0 || Math.abs(curve[i] - s) < Math.abs(curve[near] - s)) near = i;
      const beyond = near < 0 || s > frame.span || Number.isNaN(curve[near + 1]);
      return beyond ? "" : `${name}busy ${curve[near + 1].toFixed(0)} %`;
    });
    return [`${s.toFixed(2)} s`, ...found.filter(Boolean)].join(" · ");
  }
  const step = view.steps[stepAt(view.steps, s)];
  if (!step || s < Math.min(step.wait[0], step.compute[0]) || Number.isNaN(step.ms.wait)) return "";
  const all = total(step.ms), busy = Math.round((100 * step.ms.compute) / all);
  return `${s.toFixed(3)} s · step ${step.n + 1}: ${ms(all)} ms, busy ${busy} % · ${parts(step.ms)} ms`;
}

function drawPointer(g, view, colours, width) {
  const { pointer } = view;
  view.said = "";
  if (!pointer) return;
  const { place, x, from } = pointer, { box } = view[place];
  if (from !== undefined) {
    g.globalAlpha = 0.18;
    g.fillStyle = colours.text;
    g.fillRect(Math.min(x, from), box.y, Math.abs(x - from), box.height);
    g.globalAlpha = 1;
  }
  line(g, [[x, box.y], [x, box.y + box.height]], colours.text, 1, [2, 2]);
  if (!(view.said = readOut(view, view[place], x))) return;
  g.font = `12px ${g.family}`;
  const wide = g.measureText(view.said).width + 12;
  const left = Math.max(2, Math.min(x + 10, width - wide - 2));
  g.fillStyle = colours.paper;
  g.strokeStyle = colours.muted;
  g.fillRect(left, box.y + 2, wide, 20);
  g.strokeRect(left + 0.5, box.y + 2.5, wide, 20);
  text(g, view.said, left + 6, box.y + 16, colours.text);
}

function draw(canvas, model, view) {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const ratio = window.devicePixelRatio || 1;
  if (!width || !height) return;
  const pixels = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
  const g = canvas.getContext("2d"), colours = palette(canvas), device = model.get("device");
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
  const all = Math.max(frame?.span ?? 0, before?.span ?? 0, 0.5);
  const span = to - from < 1 ? `${ms(1e3 * (to - from))} ms` : `${+(to - from).toFixed(1)} s`;
  const hint = view.zoom ? " (double click: follow)" : wide ? " (drag to zoom)" : "";
  text(g, `${device}: ${view.zoom ? "" : "last "}${span}${hint}`, LEFT, 14, colours.text, "left", "600");
  view.top = xAxis(g, lanes, from, to, colours);
  drawLanes(g, view.top, view.steps, colours);
  const title = `${device} busy${wide ? ", whole run" : ""}`;
  text(g, title, LEFT, whole.y - 8, colours.text, "left", "600");
  view.low = xAxis(g, whole, 0, all, colours);
  const y = (percent) => whole.y + whole.height * (1 - percent / 100);
  for (const percent of [0, 50, 100]) {
    line(g, [[LEFT, y(percent)], [LEFT + inner.width, y(percent)]], colours.grid);
    text(g, `${percent} %`, LEFT - 8, y(percent) + 4, colours.muted, "right");
  }
  g.save();
  g.beginPath();
  g.rect(LEFT, whole.y - 2, inner.width, whole.height + 4);
  g.clip();
  const points = (curve) => Array.from({ length: curve.length / 2 }, (_, i) =>
    [view.low.x(curve[2 * i]), y(curve[2 * i + 1])]);
  const [least, guess, most] = (model.get("expected") ?? []).map((share) => y(100 * share));
  if (guess !== undefined) {
    g.globalAlpha = 0.25;
    g.fillStyle = colours.compute;
    g.fillRect(LEFT, most, inner.width, least - most);
    g.globalAlpha = 1;
    line(g, [[LEFT, guess], [LEFT + inner.width, guess]], colours.compute, 1.5, [2, 4]);
    text(g, "expected", width - RIGHT - 4, guess - 4, colours.text, "right");
  }
  if (before) line(g, points(before.curve), colours.before, 1.5, [5, 3]);
  if (frame) {
    g.globalAlpha = 0.14;
    g.fillStyle = colours.muted; // the warm-up, and where the stretch above lies in the run
    g.fillRect(LEFT, whole.y, view.low.x(frame.warm) - LEFT, whole.height);
    g.fillStyle = colours.compute;
    g.fillRect(view.low.x(from), whole.y, view.low.x(Math.min(to, all)) - view.low.x(from), whole.height);
    g.globalAlpha = 1;
    line(g, points(frame.curve), colours.compute, 2);
    const busy = y((100 * frame.means.compute) / total(frame.means));
    line(g, [[view.low.x(frame.warm), busy], [view.low.x(frame.span), busy]], colours.text, 1, [4, 3]);
  }
  g.restore();
  if (before && wide) text(g, `- - ${view.beforeName}`, width - RIGHT, whole.y - 8, colours.muted, "right");
  const none = { wait: 0, copy: 0, compute: 0, other: 0 };
  // a micro-batch beside a whole batch compares nothing: then all that an update takes
  const apart = frame && before && frame.micro !== before.micro;
  const update = (of) => Object.fromEntries(Object.entries(of.means).map(([part, ms]) => [part, ms * of.micro]));
  const means = (of) => (apart ? update(of) : of.means);
  const rows = [[apart ? "update" : "mean step", frame ? means(frame) : none]];
  if (before) rows.push(["before", means(before)]);
  legend(g, frame && means(frame), inner.width > 250 ? LEFT : 4, mean.y - 8, inner.width, colours);
  drawBars(g, mean, rows, colours);
  drawPointer(g, view, colours, width);
}
