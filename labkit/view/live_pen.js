// What the live view is drawn with: colours, a pen, an axis.

const PARTS = { // as in __init__.py
  wait: ["waiting for data", "#E69F00"],
  copy: ["copy", "#AA4499"],
  compute: ["compute", "#009E73"],
  other: ["other", "#BBBBBB"],
};
const PAGE_COLOURS = { // [the page's variable, what stands in for it]
  text: ["--jp-ui-font-color1", "#1f1f1f"],
  muted: ["--jp-ui-font-color2", "#616161"],
  paper: ["--jp-layout-color1", "#ffffff"],
  grid: ["--jp-border-color2", "#e0e0e0"],
  before: ["--jp-ui-font-color3", "#9e9e9e"],
};
const PAGE_FONT = ["--jp-ui-font-family", "system-ui, sans-serif"];

// Draws words, boxes and lines on a canvas, in the page's font and colours
class Pen {
  constructor(context, style) {
    const ofPage = ([variable, otherwise]) => style.getPropertyValue(variable).trim() || otherwise;
    this.context = context;
    this.font = `12px ${ofPage(PAGE_FONT)}`;
    this.colours = {};
    for (const [part, [, colour]] of Object.entries(PARTS)) this.colours[part] = colour;
    for (const [use, where] of Object.entries(PAGE_COLOURS)) this.colours[use] = ofPage(where);
  }

  text(words, x, y, colour, { align = "left", weight = "" } = {}) {
    this.context.fillStyle = colour;
    this.context.textAlign = align;
    this.context.font = `${weight} ${this.font}`;
    this.context.fillText(words, x, y);
  }

  widthOf(words) {
    this.context.font = this.font;
    return this.context.measureText(words).width;
  }

  fill(x, y, width, height, colour, alpha = 1) {
    this.context.globalAlpha = alpha;
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
    this.context.globalAlpha = 1;
  }

  outline(x, y, width, height, colour) {
    this.context.strokeStyle = colour;
    this.context.strokeRect(x, y, width, height);
  }

  // Draw a line through `points`, with a gap at each whose y is NaN
  line(points, colour, { width = 1, dash = [] } = {}) {
    const { context } = this;
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.lineJoin = "round";
    context.setLineDash(dash);
    context.beginPath();
    let isDown = false;
    for (const [x, y] of points) {
      const isKnown = !Number.isNaN(y);
      if (isKnown && isDown) context.lineTo(x, y);
      else if (isKnown) context.moveTo(x, y);
      isDown = isKnown;
    }
    context.stroke();
    context.setLineDash([]);
  }

  // Let `drawing` leave nothing outside a box
  within(x, y, width, height, drawing) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    drawing();
    this.context.restore();
  }
}

// The horizontal axis of a box, between two times (or durations)
class Axis {
  constructor(box, from, to) {
    this.box = box;
    this.from = from;
    this.to = to;
  }

  pixelOf(time) {
    return this.box.left + ((time - this.from) / (this.to - this.from)) * this.box.width;
  }

  timeAt(pixel) {
    return this.from + ((pixel - this.box.left) / this.box.width) * (this.to - this.from);
  }

  // Return a round distance of ticks: about one for each 90 px
  get tick() {
    const rough = (this.to - this.from) / Math.max(2, this.box.width / 90);
    const power = 10 ** Math.floor(Math.log10(rough));
    return power * [1, 2, 5, 10].find((times) => times * power >= rough * 0.999);
  }

  draw(pen) {
    const { grid, muted } = pen.colours;
    const { box, tick } = this;
    const foot = box.y + box.height;
    pen.line([[box.left, foot + 0.5], [box.left + box.width, foot + 0.5]], grid);
    const digits = Math.max(0, -Math.floor(Math.log10(tick) + 1e-6));
    const first = Math.ceil(this.from / tick - 1e-4);
    for (let count = first; count * tick <= this.to + tick * 1e-3; count++) {
      const x = this.pixelOf(count * tick);
      pen.line([[x, foot], [x, foot + 4]], grid);
      pen.text((count * tick).toFixed(digits), x, foot + 16, muted, { align: "center" });
    }
  }
}
