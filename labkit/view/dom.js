// What the widgets of this folder make their elements with.

function element(parent, tag, attributes = {}, text = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}

// Add a button; what it does is read out and shown as its tip
function button(parent, text, tip, press) {
  const made = element(parent, "button", { type: "button" }, text);
  tipOf(made, tip);
  made.addEventListener("click", press);
  return made;
}

function tipOf(control, tip) {
  control.setAttribute("aria-label", tip);
  control.setAttribute("title", tip);
}
