// Text with terminal colours (SGR) to DOM nodes: text nodes and spans, never HTML. Other whole escape sequences are left
// out, and all other control characters and invisible ones are shown, as client_lib/visible_text.py does it.

const ESCAPE =
  /\x1b\[([0-9;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]+[0-~]|\x1b[0-OQ-WYZ\\`-~]/g;
const UNSEEN =
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e01ef}]/gu;
const LEVELS = [0, 95, 135, 175, 215, 255];

/**
 * Look of a piece of text. `fg` and `bg`: 0 to 15 from the theme, or a CSS colour.
 * @typedef {{fg: number | string | null, bg: number | string | null, marks: Set<string>}} Look
 */
/** @typedef {{text: string, look: Look}} Piece */

/** @type {Record<number, string>} */
const MARKS = { 1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike" };
/** @type {Record<number, string[]>} */
const ENDS = { 22: ["bold", "dim"], 23: ["italic"], 24: ["underline"], 27: ["inverse"], 29: ["strike"] };

/** @returns {Look} */
const plain = () => ({ fg: null, bg: null, marks: new Set() });

/** @param {string} text */
const visible = (text) => text.replace(UNSEEN, shown);

/** @param {string} character */
function shown(character) {
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  return `<U+${code.toString(16).toUpperCase().padStart(4, "0")}>`;
}

/** The pieces of a line with one look each. @param {string} line @returns {Piece[]} */
export function pieces(line) {
  if (!line.includes("\x1b")) return [{ text: visible(line), look: plain() }];
  /** @type {Piece[]} */
  const found = [];
  let look = plain();
  let at = 0;
  const add = (/** @type {string} */ text) => text && found.push({ text: visible(text), look });
  for (const match of line.matchAll(ESCAPE)) {
    add(line.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[1] !== undefined) look = changed(look, match[1].split(/[;:]/).map(Number));
  }
  add(line.slice(at));
  return found;
}

/** @param {Look} before @param {number[]} codes @returns {Look} */
function changed(before, codes) {
  let look = { ...before, marks: new Set(before.marks) };
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === 0) look = plain();
    else if (MARKS[code]) look.marks.add(MARKS[code]);
    else if (ENDS[code]) ENDS[code].forEach((mark) => look.marks.delete(mark));
    else if (code === 39) look.fg = null;
    else if (code === 49) look.bg = null;
    else if (code >= 30 && code <= 37) look.fg = code - 30;
    else if (code >= 40 && code <= 47) look.bg = code - 40;
    else if (code >= 90 && code <= 97) look.fg = code - 82;
    else if (code >= 100 && code <= 107) look.bg = code - 92;
    else if (code === 38 || code === 48) {
      const wide = codes[i + 1] === 2;
      const colour = wide ? rgb(codes.slice(i + 2, i + 5)) : indexed(codes[i + 2]);
      i += wide ? 4 : 2;
      if (code === 38) look.fg = colour;
      else look.bg = colour;
    }
  }
  return look;
}

/** @param {number[]} parts */
const rgb = (parts) => `rgb(${[0, 1, 2].map((i) => Math.min(255, parts[i] || 0)).join(" ")})`;

/** A colour of the 256. @param {number} n @returns {number | string} */
function indexed(n) {
  if (!(n >= 16)) return n || 0;
  if (n >= 232) return rgb(Array(3).fill(8 + 10 * (n - 232)));
  const cube = n - 16;
  return rgb([Math.floor(cube / 36), Math.floor(cube / 6) % 6, cube % 6].map((level) => LEVELS[level]));
}

/** The nodes that show a line. @param {string} line @returns {Node[]} */
export function nodes(line) {
  return pieces(line).map(({ text, look }) => {
    if (look.fg === null && look.bg === null && !look.marks.size) return document.createTextNode(text);
    const span = document.createElement("span");
    span.textContent = text;
    look.marks.forEach((mark) => span.classList.add(mark));
    colour(span, "fg", look.fg);
    colour(span, "bg", look.bg);
    return span;
  });
}

/** @param {HTMLElement} span @param {"fg" | "bg"} which @param {number | string | null} value */
function colour(span, which, value) {
  if (typeof value === "number") span.classList.add(`${which}-${value}`);
  else if (value) span.style[which === "fg" ? "color" : "backgroundColor"] = value;
}
