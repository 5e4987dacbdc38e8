// The runs of a panel as a list (see history.py), its clipboard, and names for its controls.

function element(parent, tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

function label(control, text) {
  for (const name of ["aria-label", "title"]) control.setAttribute(name, text);
}

function button(parent, text, says, act) {
  const made = element(parent, "button", text, { type: "button" });
  label(made, says);
  made.addEventListener("click", act);
  return made;
}

function row(list, key, send) {
  const line = element(list, "div", "", { class: "run", role: "listitem" });
  line.pin = button(line, "", "", () => send({ do: "pin", key }));
  for (const part of ["name", "numbers", "verdict"]) line[part] = element(line, "span", "", { class: part });
  return line;
}

// A row stays the same element: a click on one that is replaced meanwhile would be lost
function tell(line, { name, pinned, numbers, verdict }) {
  line.pin.textContent = pinned ? "pinned" : "pin";
  label(line.pin, pinned ? `stop comparing with ${name}` : `compare the next runs with ${name}`);
  line.pin.setAttribute("aria-pressed", String(pinned));
  line.name.textContent = name;
  line.numbers.textContent = numbers;
  line.verdict.textContent = verdict;
}

// Name what the panel's widgets leave nameless: their inputs, handles and read-outs
function nameControls(panel) {
  for (const control of panel.querySelectorAll("[class*=labkit-knob-]")) {
    const name = control.querySelector(".widget-html-content")?.textContent.trim();
    for (const part of control.querySelectorAll("input, select, [role=slider], [contenteditable]"))
      if (name && part.getAttribute("aria-label") !== name) part.setAttribute("aria-label", name);
  }
  panel.setAttribute("role", "group");
  panel.setAttribute("aria-label", "labkit panel");
}

// A button that is disabled drops the keyboard's focus: Run passes it on to Stop, and Stop back
function keepFocus(panel) {
  let last = null; // the button that has the focus, or lost it by being disabled
  const got = (event) => (last = event.target.closest("button"));
  const left = (event) => {
    if (!event.target.disabled) last = null;
  };
  const pass = () => {
    if (!last?.disabled || ![last, document.body].includes(document.activeElement)) return;
    [...last.parentElement.querySelectorAll("button")].find((other) => !other.disabled)?.focus();
  };
  panel.addEventListener("focusin", got);
  panel.addEventListener("focusout", left);
  const watched = new MutationObserver(pass);
  watched.observe(panel, { subtree: true, attributes: true, attributeFilter: ["disabled"] });
  return watched;
}

async function copy(text, box, said) {
  box.value = text;
  box.hidden = false;
  box.rows = Math.min(12, text.split("\n").length);
  box.select();
  try {
    await navigator.clipboard.writeText(text);
    said.textContent = "copied";
  } catch {
    said.textContent = "press Ctrl+C to copy"; // a page that may not write to the clipboard
  }
}

function render({ model, el }) {
  const root = element(el, "div", "", { class: "labkit-history" });
  const list = element(root, "div", "", { role: "list", "aria-label": "the last runs of this panel" });
  const copies = element(root, "div", "", { class: "copies" });
  const box = element(root, "textarea", "", { "aria-label": "copied text", readonly: "" });
  box.hidden = true;
  const lines = new Map(); // by the run's key
  const show = () => {
    const runs = model.get("rows"), kept = new Set(runs.map((run) => run.key));
    for (const [key, line] of lines)
      if (!kept.has(key) && lines.delete(key)) line.remove();
    runs.forEach((run, place) => {
      if (!lines.has(run.key)) lines.set(run.key, row(list, run.key, (asked) => model.send(asked)));
      const line = lines.get(run.key);
      if (list.children[place] !== line) list.insertBefore(line, list.children[place] ?? null);
      tell(line, run);
    });
  };
  for (const what of model.get("copies"))
    button(copies, `copy as ${what}`, `copy as ${what}`, () => {
      said.textContent = "…"; // a whole script takes two seconds to write
      model.send({ do: "copy", value: what });
    });
  const said = element(copies, "span", "", { role: "status" });
  const heard = (message) => message.copy !== undefined && copy(message.copy, box, said);
  model.on("change:rows", show);
  model.on("msg:custom", heard);
  show();
  let panel = null, focus = null;
  const watched = new MutationObserver(() => nameControls(panel));
  const found = setInterval(() => {
    if (!(panel = root.closest(".labkit-panel"))) return;
    clearInterval(found);
    nameControls(panel);
    watched.observe(panel, { childList: true, subtree: true });
    focus = keepFocus(panel);
  }, 100);
  return () => {
    clearInterval(found);
    watched.disconnect();
    focus?.disconnect();
    model.off("change:rows", show);
    model.off("msg:custom", heard);
  };
}

export default { render };
