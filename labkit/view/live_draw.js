// The drawing of the live view, as the final figure's: from above the intervals of the last steps,
// the busy share over the whole run, and the mean step by what its time went to.

const LEFT = 74; // px, for the words beside a box
const RIGHT = 14;
const ROOM_FOR_WORDS = 520; // px of width
const LANE_GAP = 0.06; // of the height of all lanes

const LANES = [
  { name: "busy", part: "compute", share: 0.56 },
  { name: "copy", part: "copy", share: 0.16 },
  { name: "waiting", part: "wait", share: 0.16 },
];

function inMs(value) {
  if (value >= 99.5) return value.toFixed(0);
  return value.toFixed(value >= 0.95 ? 1 : 2);
}

function total(ms) {
  return ms.wait + ms.copy + ms.compute + ms.other;
}

// Return the place of the first of `steps` that ends after `s`
function stepAt(steps, s) {
  let low = 0;
  let high = steps.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle].end < s) low = middle + 1;
    else high = middle;
  }
  return low;
}

// Draw the whole view and keep its two axes of time in it, for the pointer
function draw(canvas, model, view) {
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (!width || !height) return;
  const pen = new Pen(blank(canvas, width, height), getComputedStyle(canvas));
  const { frame, before } = view;
  const device = view.frame?.device ?? "device";
  const boxes = boxesOf(width, height, before);
  const hasRoom = width > ROOM_FOR_WORDS;
  const [from, to] = view.zoom ?? [frame?.start ?? 0, frame?.end ?? 2];

  drawTitle(pen, stepsTitle(device, from, to, view.zoom, hasRoom), boxes.steps.y - 10);
  view.axes.steps = new Axis(boxes.steps, from, to);
  view.axes.steps.draw(pen);
  drawLanes(pen, view.axes.steps, view.steps);

  drawTitle(pen, `${device} busy${hasRoom ? ", whole run" : ""}`, boxes.run.y - 8);
  if (before && hasRoom) {
    const right = { align: "right" };
    pen.text(`- - ${nameOf(view.before)}`, width - RIGHT, boxes.run.y - 8, pen.colours.muted, right);
  }
  view.axes.run = new Axis(boxes.run, 0, Math.max(frame?.length ?? 0, before?.length ?? 0, 0.5));
  view.axes.run.draw(pen);
  drawRun(pen, view.axes.run, view, model.get("expected") ?? [], from, to);

  drawMeans(pen, boxes.means, frame, before);
  drawPointer(pen, view, width);
}

// Return the canvas' context, cleared, with CSS pixels as its unit
function blank(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const wide = Math.round(width * ratio);
  const tall = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== tall) {
    canvas.width = wide;
    canvas.height = tall;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// Return where each drawing stands: there is a bar more, and so less room, with a run before
function boxesOf(width, height, before) {
  const bars = 16 * (before ? 2 : 1) + 10;
  const room = Math.max(60, height - bars - 150);
  const place = (y, tall) => ({ left: LEFT, width: width - LEFT - RIGHT, y, height: tall });
  const steps = place(24, 0.46 * room);
  const run = place(steps.y + steps.height + 50, 0.54 * room);
  const means = place(run.y + run.height + 46, bars);
  return { steps, run, means };
}

function drawTitle(pen, words, y) {
  pen.text(words, LEFT, y, pen.colours.text, { weight: "600" });
}

function stepsTitle(device, from, to, zoom, hasRoom) {
  const long = to - from;
  const span = long < 1 ? `${inMs(1e3 * long)} ms` : `${+long.toFixed(1)} s`;
  if (zoom) return `${device}: ${span} (double click: follow)`;
  return `${device}: last ${span}${hasRoom ? " (drag to zoom)" : ""}`;
}

function drawLanes(pen, axis, steps) {
  const { box } = axis;
  let y = box.y;
  for (const { name, part, share } of LANES) {
    const height = share * box.height;
    if (height > 9) {
      pen.text(name, box.left - 8, y + height / 2 + 4, pen.colours.muted, { align: "right" });
    }
    drawLane(pen, axis, steps, part, y, height);
    y += height + LANE_GAP * box.height;
  }
}

// Fill the time that steps were in one part; what falls on pixels that are filled is left out
function drawLane(pen, axis, steps, part, y, height) {
  let filledTo = -1;
  for (let place = stepAt(steps, axis.from); place < steps.length; place++) {
    const { spans } = steps[place];
    const [start, end] = spans[part];
    if (start > axis.to && spans.wait[0] > axis.to) break;
    const left = axis.pixelOf(Math.max(start, axis.from));
    const right = axis.pixelOf(Math.min(end, axis.to));
    if (end <= start || right <= left || right < filledTo + 0.25) continue;
    filledTo = Math.max(right, left + 0.75);
    pen.fill(left, y, filledTo - left, height, pen.colours[part]);
  }
}

// Draw the busy share over the run, over that of the run before and what was expected
function drawRun(pen, axis, { frame, before }, expected, from, to) {
  const { box } = axis;
  const { colours } = pen;
  const right = box.left + box.width;
  const yOf = (percent) => box.y + box.height * (1 - percent / 100);
  const pointsOf = ({ curve }) => curve.map(([s, percent]) => [axis.pixelOf(s), yOf(percent)]);
  for (const percent of [0, 50, 100]) {
    const y = yOf(percent);
    pen.line([[box.left, y], [right, y]], colours.grid);
    pen.text(`${percent} %`, box.left - 8, y + 4, colours.muted, { align: "right" });
  }
  pen.within(box.left, box.y - 2, box.width, box.height + 4, () => {
    if (expected.length) drawExpected(pen, box, ...expected.map((share) => yOf(100 * share)));
    if (before) pen.line(pointsOf(before), colours.before, { width: 1.5, dash: [5, 3] });
    if (!frame) return;
    const shade = (start, end, colour) => {
      const left = axis.pixelOf(start);
      pen.fill(left, box.y, axis.pixelOf(end) - left, box.height, colour, 0.14);
    };
    shade(0, frame.warmup, colours.muted);
    shade(from, Math.min(to, axis.to), colours.compute); // the steps that are drawn above
    pen.line(pointsOf(frame), colours.compute, { width: 2 });
    const mean = yOf((100 * frame.means.compute) / total(frame.means));
    const ends = [[axis.pixelOf(frame.warmup), mean], [axis.pixelOf(frame.length), mean]];
    pen.line(ends, colours.text, { dash: [4, 3] });
  });
}

function drawExpected(pen, box, yLeast, y, yMost) {
  const { compute, text } = pen.colours;
  const right = box.left + box.width;
  pen.fill(box.left, yMost, box.width, yLeast - yMost, compute, 0.25);
  pen.line([[box.left, y], [right, y]], compute, { width: 1.5, dash: [2, 4] });
  pen.text("expected", right - 4, y - 4, text, { align: "right" });
}

// Draw the mean step as a bar with its legend, over that of the run before
function drawMeans(pen, box, frame, before) {
  // a micro-batch beside a whole batch compares nothing: then all that an update takes
  const isUpdate = frame && before && frame.accumulationSteps !== before.accumulationSteps;
  const meansOf = (run) => {
    const ms = {};
    const times = isUpdate ? run.accumulationSteps : 1;
    for (const part of Object.keys(PARTS)) ms[part] = run ? run.means[part] * times : 0;
    return ms;
  };
  const bars = [[isUpdate ? "update" : "mean step", meansOf(frame)]];
  if (before) bars.push(["before", meansOf(before)]);
  drawLegend(pen, box, bars[0][1]);
  const longest = Math.max(...bars.map(([, ms]) => total(ms)));
  if (!(longest > 0)) return; // nothing is measured yet, so there is no scale either
  const axis = new Axis({ ...box, width: box.width - 70 }, 0, longest);
  axis.draw(pen);
  const height = box.height / bars.length - 4;
  bars.forEach(([name, ms], place) => {
    if (total(ms) > 0) drawBar(pen, axis, name, ms, box.y + place * (height + 4), height);
  });
}

// Draw the colour of each part, and beside it as much as there is room for
function drawLegend(pen, box, means) {
  const whole = total(means);
  let x = box.width > 250 ? LEFT : 4;
  for (const [part, [name]] of Object.entries(PARTS)) {
    let words = box.width > 440 ? name : part;
    if (box.width > 620 && whole > 0) {
      words += ` ${inMs(means[part])} ms (${Math.round((100 * means[part]) / whole)} %)`;
    }
    pen.fill(x, box.y - 17, 14, 10, pen.colours[part]);
    pen.text(words, x + 19, box.y - 8, pen.colours.text);
    x += 19 + pen.widthOf(words) + 14;
  }
}

function drawBar(pen, axis, name, ms, y, height) {
  const { muted, text } = pen.colours;
  const foot = y + height / 2 + 4;
  pen.text(name, axis.box.left - 8, foot, muted, { align: "right" });
  let done = 0;
  for (const part of Object.keys(PARTS)) {
    const width = axis.pixelOf(ms[part]) - axis.pixelOf(0);
    pen.fill(axis.pixelOf(done), y, width, height, pen.colours[part]);
    done += ms[part];
  }
  pen.text(`${inMs(done)} ms`, axis.pixelOf(done) + 6, foot, text);
}

// Draw a line under the pointer, the stretch that is dragged, and what is there in words
function drawPointer(pen, view, width) {
  view.readOut = "";
  if (!view.pointer) return;
  const { over, x, draggedFrom } = view.pointer;
  const { text, paper, muted } = pen.colours;
  const axis = view.axes[over];
  const { y, height } = axis.box;
  if (draggedFrom !== undefined) {
    pen.fill(Math.min(x, draggedFrom), y, Math.abs(x - draggedFrom), height, text, 0.18);
  }
  pen.line([[x, y], [x, y + height]], text, { dash: [2, 2] });
  view.readOut = (over === "run" ? runReadOut : stepReadOut)(view, axis.timeAt(x));
  if (!view.readOut) return;
  const wide = pen.widthOf(view.readOut) + 12;
  const left = Math.max(2, Math.min(x + 10, width - wide - 2));
  pen.fill(left, y + 2, wide, 20, paper);
  pen.outline(left + 0.5, y + 2.5, wide, 20, muted);
  pen.text(view.readOut, left + 6, y + 16, text);
}

// Say how busy the device was at a moment of the run, and of the run before
function runReadOut({ frame, before }, s) {
  const words = [`${s.toFixed(2)} s`];
  for (const [name, run] of [["", frame], [`${nameOf(before)}: `, before]]) {
    const percent = run && s <= run.length ? nearest(run.curve, s) : NaN;
    if (!Number.isNaN(percent)) words.push(`${name}busy ${percent.toFixed(0)} %`);
  }
  return words.join(" · ");
}

// Return the value of the curve's point nearest to `s`; NaN where there is none
function nearest(curve, s) {
  let [time, value] = [Infinity, NaN];
  for (const point of curve) {
    if (Math.abs(point[0] - s) < Math.abs(time - s)) [time, value] = point;
  }
  return value;
}

// Say what the step at a moment spent its time on; "" between steps
function stepReadOut({ steps }, s) {
  const step = steps[stepAt(steps, s)];
  if (!step) return "";
  const { number, spans, ms } = step;
  if (s < Math.min(spans.wait[0], spans.compute[0]) || Number.isNaN(ms.wait)) return "";
  const whole = total(ms);
  const busy = Math.round((100 * ms.compute) / whole);
  const parts = Object.keys(PARTS).map((part) => `${part} ${inMs(ms[part])}`);
  const what = `step ${number + 1}: ${inMs(whole)} ms, busy ${busy} %`;
  return `${s.toFixed(3)} s · ${what} · ${parts.join(", ")} ms`;
}
