// A prediction as two bars (see forecast.py): its ranges, the last run's marks, and what came.

const LINES = {
  "last run": "2px dotted var(--jp-ui-font-color2, #888)",
  predicted: "2px solid #009e73",
  came: "4px solid var(--jp-ui-font-color0, #000)",
};
const KINDS = [
  ["samples/s", (rate) => Math.round(rate).toLocaleString("en")],
  ["busy", (share) => `${Math.round(100 * share)} %`],
];

function element(parent, tag, text = "", style = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.style.cssText = style;
  parent.append(made);
  return made;
}

function sentence(bars) {
  const [rate, busy] = bars.predicted, name = KINDS[0][1];
  if (!bars.came) return ["Expected: ", `${(rate / bars["last run"][0]).toPrecision(2)}x the last run; limit: ${bars.limit}.`];
  const off = 100 * (rate / bars.came[0] - 1), points = 100 * (busy - bars.came[1]);
  const sign = (value) => `${value < 0 ? "−" : "+"}${Math.abs(Math.round(value))}`;
  const inside = bars.low[0] <= bars.came[0] && bars.came[0] <= bars.high[0] ? "inside" : "outside";
  return [`Predicted ${name(rate)}, came ${name(bars.came[0])} samples/s: `,
    `${sign(off)} %, ${inside} the range; busy ${sign(points)} points.`];
}

function bar(root, bars, which) {
  const [name, text] = KINDS[which], low = bars.low[which], high = bars.high[which];
  const marks = Object.keys(LINES).filter((mark) => bars[mark]);
  const top = which ? 1 : 1.05 * Math.max(high, ...marks.map((mark) => bars[mark][0]));
  const row = element(root, "div"), at = (value) => `left:${(100 * value) / top}%;`;
  row.className = "row";
  element(row, "b", name);
  const scale = element(row, "div");
  element(scale, "i", "", `${at(low)}width:${(100 * (high - low)) / top}%;background:#009e73;opacity:.35`);
  for (const mark of marks) element(scale, "i", "", `${at(bars[mark][which])}border-left:${LINES[mark]}`);
  element(row, "span", `${text(bars.predicted[which])} (${text(low)} to ${text(high)})`);
}

function render({ model, el }) {
  const root = element(el, "div");
  root.className = "labkit-ghost";
  root.setAttribute("role", "status");
  const show = () => {
    const bars = model.get("bars");
    root.replaceChildren();
    if (!bars.predicted) return element(root, "div", model.get("said"));
    const [title, words] = sentence(bars), said = element(root, "div");
    element(said, "b", title);
    said.append(words);
    for (const mark of Object.keys(LINES).filter((mark) => bars[mark]))
      element(said, "span", mark, `border-left:${LINES[mark]}`);
    for (const which of [0, 1]) bar(root, bars, which);
  };
  model.on("change:bars change:said", show);
  show();
  return () => model.off("change:bars change:said", show);
}

export default { render };
