// What the kernel sends for a picture (see live_frame.py): numbers by name, and float32 arrays of
// the steps in the window and of the curve of the whole run.

const STEP_ROW = 10; // numbers of a step: six stamps in s since the window's start, four parts in ms

function floats(view) {
  return new Float32Array(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
}

// Return a frame whose steps and curve are objects, times in seconds of the run; null for none
function readFrame(sent) {
  if (!sent?.rows) return null;
  const rows = floats(sent.rows);
  const points = floats(sent.curve);
  const steps = [];
  for (let at = 0; at < rows.length; at += STEP_ROW) {
    const number = sent.steps - (rows.length - at) / STEP_ROW;
    steps.push(stepOf(rows.subarray(at, at + STEP_ROW), number, sent.start));
  }
  const curve = []; // of [time, busy share in %]
  for (let at = 0; at < points.length; at += 2) curve.push([points[at], points[at + 1]]);
  return { ...sent, steps, curve };
}

// Return a step: its number, when it was in each part, and how long of it each part took
function stepOf(row, number, start) {
  const at = (place) => [start + row[place], start + row[place + 1]];
  const [wait, copy, compute, other] = row.subarray(6);
  return {
    number,
    end: start + row[5],
    spans: { wait: at(0), copy: at(2), compute: at(4) },
    ms: { wait, copy, compute, other },
  };
}

// Return the name of the run before, as its frame has it; `before` may be null
function nameOf(before) {
  return before?.mark || "run before";
}
