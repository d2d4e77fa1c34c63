// Builds elements from text: no markup is ever parsed.

/**
 * An element with attributes (a function: listener of that event; true: present; false: absent) and children.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {Record<string, string | number | boolean | ((event: Event) => void)>} attributes
 * @param {...(Node | string)} children @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children);
  return element;
}

let labels = 0;

/** A control with its label. @param {string} text @param {HTMLElement} control */
export function labelled(text, control) {
  control.id = `control-${++labels}`;
  return h("span", { class: "labelled" }, h("label", { for: control.id }, text), control);
}

/** A place for one message, which screen readers announce. */
export function status() {
  const element = h("p", { class: "message", role: "status" });
  return { element, say: (/** @type {string} */ text) => void (element.textContent === text || (element.textContent = text)) };
}

/** A job's page without a part of its address. @param {string} name @param {string} value  "" removes it */
export function keepInAddress(name, value) {
  const here = new URL(location.href);
  if (value) here.searchParams.set(name, value);
  else here.searchParams.delete(name);
  history.replaceState(history.state, "", here);
}

/** The moment that curves and log have in common. @param {number} time seconds since 1970 @param {"curves" | "log"} from */
export function chooseTime(time, from) {
  document.dispatchEvent(new CustomEvent("time", { detail: { time, from } }));
}

/** @param {"curves" | "log"} from @param {(time: number) => void} act */
export function onTime(from, act) {
  document.addEventListener("time", (event) => {
    const { detail } = /** @type {CustomEvent<{time: number, from: string}>} */ (event);
    if (detail.from === from) act(detail.time);
  });
}
