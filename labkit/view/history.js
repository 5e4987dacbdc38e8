// The runs of a panel as a list, each with a button that pins it (see history.py).

function render({ model, el }) {
  const root = element(el, "div", { class: "labkit-history" });
  const list = element(root, "div", { role: "list", "aria-label": "the last runs of this panel" });
  const lines = new Map(); // by the run's key
  const show = () => {
    const runs = model.get("rows");
    removeOthers(lines, new Set(runs.map((run) => run.key)));
    runs.forEach((run, place) => {
      if (!lines.has(run.key)) {
        lines.set(run.key, lineIn(list, () => model.send({ pin: run.key })));
      }
      const line = lines.get(run.key);
      const there = list.children[place];
      if (there !== line.root) list.insertBefore(line.root, there ?? null);
      tell(line, run);
    });
  };
  model.on("change:rows", show);
  show();
  return () => model.off("change:rows", show);
}

function removeOthers(lines, kept) {
  for (const [key, line] of lines) {
    if (kept.has(key)) continue;
    line.root.remove();
    lines.delete(key);
  }
}

// A line stays the same element: a click on one that is replaced meanwhile would be lost
function lineIn(list, pin) {
  const root = element(list, "div", { class: "run", role: "listitem" });
  return {
    root,
    pin: button(root, "", "", pin),
    name: element(root, "span", { class: "name" }),
    numbers: element(root, "span", { class: "numbers" }),
    verdict: element(root, "span", { class: "verdict" }),
  };
}

function tell(line, { name, pinned, numbers, verdict }) {
  line.pin.textContent = pinned ? "pinned" : "pin";
  line.pin.setAttribute("aria-pressed", String(pinned));
  tipOf(line.pin, pinned ? `stop comparing with ${name}` : `compare the next runs with ${name}`);
  line.name.textContent = name;
  line.numbers.textContent = numbers;
  line.verdict.textContent = verdict;
}

export default { render };
