// A button for each text of a panel that can be copied, and the text itself (see clipboard.py).

function render({ model, el }) {
  const root = element(el, "div", { class: "labkit-clipboard" });
  const line = element(root, "div", { class: "copies" });
  for (const name of model.get("names")) {
    button(line, `copy as ${name}`, `copy as ${name}`, () => {
      status.textContent = "…"; // a whole script takes two seconds to write
      model.send({ copy: name });
    });
  }
  const status = element(line, "span", { role: "status" });
  const box = element(root, "textarea", { "aria-label": "copied text", readonly: "" });
  box.hidden = true;
  const take = ({ text }) => copy(text, box, status);
  model.on("msg:custom", take);
  return () => model.off("msg:custom", take);
}

async function copy(text, box, status) {
  box.value = text;
  box.hidden = false;
  box.rows = Math.min(12, text.split("\n").length);
  box.select();
  try {
    await navigator.clipboard.writeText(text);
    status.textContent = "copied";
  } catch {
    status.textContent = "press Ctrl+C to copy"; // a page that may not write to the clipboard
  }
}

export default { render };
