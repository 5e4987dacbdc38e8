// The runs of a panel as a list (see history.py), its clipboard, and names for its controls.

function element(parent, tag, text = "", attributes = {}) {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

function button(parent, text, label, key, pressed, act) {
  const attributes = { type: "button", "aria-label": label, title: label, "data-key": key };
  if (pressed !== null) attributes["aria-pressed"] = String(pressed);
  element(parent, "button", text, attributes).addEventListener("click", act);
}

function row(list, run, send) {
  const line = element(list, "div", "", { class: "run", role: "listitem" }), name = run.name;
  const ask = (what, value = "") => () => send({ do: what, key: run.key, value });
  const pin = run.pinned ? `stop comparing with ${name}` : `compare the next runs with ${name}`;
  button(line, run.pinned ? "pinned" : "pin", pin, `pin ${run.key}`, run.pinned, ask("pin"));
  const box = element(line, "input", "", {
    "aria-label": `name of the run ${name}`, title: "type to rename", "data-key": `name ${run.key}`,
  });
  box.value = name;
  box.addEventListener("change", () => ask("rename", box.value)());
  element(line, "span", run.numbers, { class: "numbers" });
  element(line, "span", run.note || run.verdict, { class: "verdict", role: "status" });
  button(line, "save", `save ${name} as a file`, `save ${run.key}`, null, ask("save"));
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
  const show = () => {
    const focused = document.activeElement?.dataset?.key;
    list.replaceChildren();
    for (const run of model.get("rows")) row(list, run, (asked) => model.send(asked));
    for (const part of focused ? list.querySelectorAll("[data-key]") : [])
      if (part.dataset.key === focused) part.focus();
  };
  for (const what of model.get("copies"))
    button(copies, `copy as ${what}`, `copy as ${what}`, what, null, () => {
      said.textContent = "…"; // a whole script takes two seconds to write
      model.send({ do: "copy", value: what });
    });
  const said = element(copies, "span", "", { role: "status" });
  const heard = (message) => message.copy !== undefined && copy(message.copy, box, said);
  model.on("change:rows", show);
  model.on("msg:custom", heard);
  show();
  let panel = null;
  const watched = new MutationObserver(() => nameControls(panel));
  const found = setInterval(() => {
    if (!(panel = root.closest(".labkit-panel"))) return;
    clearInterval(found);
    nameControls(panel);
    watched.observe(panel, { childList: true, subtree: true });
  }, 100);
  return () => {
    clearInterval(found);
    watched.disconnect();
    model.off("change:rows", show);
    model.off("msg:custom", heard);
  };
}

export default { render };
