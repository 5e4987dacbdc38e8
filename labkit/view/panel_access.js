// A panel by keyboard and screen reader: what ipywidgets leave nameless is named, and the focus
// stays. It shows nothing itself (see live.py).

const LOOK_MS = 100;

function render({ el }) {
  let stopFocus = () => {};
  let panel = null;
  const changed = new MutationObserver(() => nameControls(panel));
  const look = setInterval(() => { // an element is put into the page after it is rendered
    panel = el.closest(".labkit-panel");
    if (!panel) return;
    clearInterval(look);
    nameControls(panel);
    changed.observe(panel, { childList: true, subtree: true });
    stopFocus = keepFocus(panel);
  }, LOOK_MS);
  return () => {
    clearInterval(look);
    changed.disconnect();
    stopFocus();
  };
}

// Name the inputs, handles and read-outs of each knob
function nameControls(panel) {
  for (const control of panel.querySelectorAll("[class*=labkit-knob-]")) {
    const name = control.querySelector(".widget-label")?.textContent.trim();
    if (!name) continue;
    const parts = "input, select, [role=slider], [contenteditable]";
    for (const part of control.querySelectorAll(parts)) {
      if (part.getAttribute("aria-label") !== name) part.setAttribute("aria-label", name);
    }
  }
  panel.setAttribute("role", "group");
  panel.setAttribute("aria-label", "labkit panel");
}

// A button that is disabled drops the keyboard's focus: Run passes it on to Stop, and Stop back
function keepFocus(panel) {
  let last = panel.querySelector("button:focus"); // has the focus, or lost it by being disabled
  const got = (event) => {
    last = event.target.closest("button");
  };
  const left = (event) => {
    if (!event.target.disabled) last = null;
  };
  const pass = () => {
    const holds = [last, document.body].includes(document.activeElement); // nothing else got it
    if (!last?.disabled || !holds) return;
    const others = [...last.parentElement.querySelectorAll("button")];
    others.find((button) => !button.disabled)?.focus();
  };
  panel.addEventListener("focusin", got);
  panel.addEventListener("focusout", left);
  const disabled = new MutationObserver(pass);
  disabled.observe(panel, { subtree: true, attributes: true, attributeFilter: ["disabled"] });
  return () => {
    panel.removeEventListener("focusin", got);
    panel.removeEventListener("focusout", left);
    disabled.disconnect();
  };
}

export default { render };
