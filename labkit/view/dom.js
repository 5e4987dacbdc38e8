// What every widget of this folder makes its elements with.

function element(parent, tag, attributes = {}, text = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  parent.append(made);
  return made;
}
