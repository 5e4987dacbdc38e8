// What the kernel sends for a picture: float32 numbers, packed by live_frame.py.

// The header, and the row of each step: the fields of FrameHeader and StepRow there, in their order
const FRAME_HEADER = [
  "rows",
  "curve_points",
  "serial",
  "start_s",
  "start_rest_s",
  "window_s",
  "length_s",
  "steps",
  "warmup_s",
  "accumulation_steps",
  "wait_ms",
  "copy_ms",
  "compute_ms",
  "other_ms",
];
const STEP_ROW = [
  "busy_from_s",
  "busy_to_s",
  "wait_from_s",
  "wait_to_s",
  "copy_from_s",
  "copy_to_s",
  "wait_ms",
  "copy_ms",
  "other_ms",
];

function named(names, values) {
  return Object.fromEntries(names.map((name, place) => [name, values[place]]));
}

// Return a frame as an object, its times in seconds of the run; null where there is none
function readFrame(bytes) {
  if (!bytes || bytes.byteLength < 4 * FRAME_HEADER.length) return null;
  const end = bytes.byteOffset + bytes.byteLength;
  const values = new Float32Array(bytes.buffer.slice(bytes.byteOffset, end));
  const header = named(FRAME_HEADER, values);
  const start = header.start_s + header.start_rest_s;
  const steps = [];
  let at = FRAME_HEADER.length;
  for (let number = header.steps - header.rows; number < header.steps; number++) {
    const row = named(STEP_ROW, values.subarray(at, at + STEP_ROW.length));
    steps.push(stepOf(row, number, start));
    at += STEP_ROW.length;
  }
  const curve = []; // of [time, busy share in %]
  for (let point = 0; point < header.curve_points; point++) {
    curve.push([values[at], values[at + 1]]);
    at += 2;
  }
  return {
    serial: header.serial,
    start,
    end: start + header.window_s,
    length: header.length_s,
    warmup: header.warmup_s,
    accumulationSteps: header.accumulation_steps,
    steps,
    curve,
    means: {
      wait: header.wait_ms,
      copy: header.copy_ms,
      compute: header.compute_ms,
      other: header.other_ms,
    },
  };
}

// Return a step: its number, when it was in each part, and how long of it each part took
function stepOf(row, number, start) {
  return {
    number,
    end: start + row.busy_to_s,
    spans: {
      wait: [start + row.wait_from_s, start + row.wait_to_s],
      copy: [start + row.copy_from_s, start + row.copy_to_s],
      compute: [start + row.busy_from_s, start + row.busy_to_s],
    },
    ms: {
      wait: row.wait_ms,
      copy: row.copy_ms,
      compute: 1e3 * (row.busy_to_s - row.busy_from_s),
      other: row.other_ms,
    },
  };
}
