// Hovering over the live view, and zooming: drag a stretch, turn the wheel (once clicked on) or
// press + - and arrow keys; a double click or Escape follows the run again.

const DRAG_PX = 5; // a shorter one was a click
const WHEEL_FACTOR = 1.2; // a notch
const LEAST_SPAN_S = 1e-5;

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

// Listen on the canvas; `redraw` is called where view.pointer or view.zoom has changed
function listenOn(canvas, view, redraw) {
  const overWhich = (y) => Object.keys(view.axes).find((name) => {
    const { box } = view.axes[name];
    return y >= box.y - 4 && y <= box.y + box.height + 18;
  });
  const pointTo = (pointer) => {
    view.pointer = pointer;
    redraw();
  };
  const handlers = {
    pointerdown(event) {
      const over = overWhich(event.offsetY);
      if (!over) return;
      canvas.setPointerCapture(event.pointerId);
      view.pointer = { over, x: event.offsetX, draggedFrom: event.offsetX };
    },
    pointermove(event) {
      const draggedFrom = view.pointer?.draggedFrom;
      const isDragging = draggedFrom !== undefined;
      const over = isDragging ? view.pointer.over : overWhich(event.offsetY);
      if (!over) return pointTo(null);
      const { left, width } = view.axes[over].box;
      pointTo({ over, x: clamp(event.offsetX, left, left + width), draggedFrom });
    },
    pointerup() {
      if (view.pointer?.draggedFrom === undefined) return;
      const { over, x, draggedFrom } = view.pointer;
      const axis = view.axes[over];
      if (Math.abs(x - draggedFrom) > DRAG_PX) {
        const from = axis.timeAt(Math.min(x, draggedFrom));
        const to = axis.timeAt(Math.max(x, draggedFrom));
        view.zoom = stretchOf(view, from, to);
      }
      pointTo({ over, x });
    },
    pointerleave(event) {
      if (event.pointerType !== "touch") pointTo(null);
    },
    pointercancel() {
      pointTo(null);
    },
    dblclick() {
      view.zoom = null;
      redraw();
    },
    wheel(event) {
      // not in the way of someone who only scrolls past
      const isMeant = event.ctrlKey || document.activeElement === canvas;
      if (!view.axes.steps || !isMeant) return;
      event.preventDefault();
      const at = view.axes.steps.timeAt(event.offsetX);
      view.zoom = scaled(view, WHEEL_FACTOR ** Math.sign(event.deltaY), at);
      redraw();
    },
    keydown(event) {
      if (!view.axes.steps || !(event.key in ZOOM_OF_KEY)) return;
      event.preventDefault();
      event.stopPropagation(); // Jupyter has keys of its own
      view.zoom = ZOOM_OF_KEY[event.key](view, view.axes.steps);
      redraw();
    },
  };
  for (const [name, handler] of Object.entries(handlers)) {
    canvas.addEventListener(name, handler, { passive: false });
  }
}

const ZOOM_OF_KEY = {
  "+": (view, { from, to }) => scaled(view, 0.5, (from + to) / 2),
  "-": (view, { from, to }) => scaled(view, 2, (from + to) / 2),
  ArrowLeft: (view, { from, to }) => stretchOf(view, from - (to - from) / 3, to - (to - from) / 3),
  ArrowRight: (view, { from, to }) => stretchOf(view, from + (to - from) / 3, to + (to - from) / 3),
  Escape: () => null,
};

// Return what is to be shown for a stretch that was asked for: within the run, null for all of it
function stretchOf(view, from, to) {
  const length = Math.max(view.frame?.length ?? 0, 0.01);
  const span = clamp(to - from, LEAST_SPAN_S, length);
  if (span >= length * 0.999 && to - from > length) return null;
  const start = clamp(from, 0, length - span);
  return [start, start + span];
}

// Return the stretch that is shown made longer or shorter, with `at` where it is on the page
function scaled(view, factor, at) {
  const { from, to } = view.axes.steps;
  return stretchOf(view, at - (at - from) * factor, at + (to - at) * factor);
}
