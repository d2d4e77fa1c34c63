// A list of any number of rows of which only the visible ones are in the document.

/** @import { Row } from "./records.js" */

const BEYOND = 15; // rows that are drawn above and below the visible ones

export class RowList {
  /** @type {Row[]} */
  rows = [];
  /** The newest row stays in sight. */
  stick = true;
  /** Rows come at the end: who scrolls there sticks to it. */
  grows = false;
  /** @type {Row | null} */
  marked = null;
  #body = document.createElement("div");
  #height = 18;
  #drawn = "";
  #waiting = false;
  /** Where we have scrolled to: another place was chosen by the user. */
  #place = 0;
  /** @type {WeakMap<Row, HTMLElement>} */
  #nodes = new WeakMap();

  /**
   * @param {HTMLElement} box  scrolls, and has a height
   * @param {(row: Row) => HTMLElement} render
   * @param {(edge: "top" | "bottom" | "") => void} scrolled  after the user has scrolled
   */
  constructor(box, render, scrolled) {
    this.box = box;
    this.render = render;
    this.#body.className = "log-rows";
    this.pad = document.createElement("div");
    this.pad.className = "log-pad";
    this.pad.append(this.#body);
    box.replaceChildren(this.pad);
    box.addEventListener("scroll", () => {
      if (box.scrollTop !== this.#place) this.stick = this.grows && this.#below() < this.#height;
      this.draw();
      scrolled(box.scrollTop < 20 * this.#height ? "top" : this.#below() < 20 * this.#height ? "bottom" : "");
    });
    new ResizeObserver(() => this.draw(true)).observe(box);
  }

  /** Pixels below the visible part. */
  #below() {
    return this.box.scrollHeight - this.box.clientHeight - this.box.scrollTop;
  }

  /** @param {Row[]} rows */
  append(rows) {
    for (const row of rows) this.rows.push(row);
    this.draw();
  }

  /** @param {Row[]} rows */
  prepend(rows) {
    this.rows = rows.concat(this.rows);
    this.#shift(rows.length);
  }

  /** Removes the first rows. @param {number} count */
  cutTop(count) {
    this.rows.splice(0, count);
    this.#shift(-count);
  }

  /** Removes the last rows. @param {number} count */
  cutBottom(count) {
    this.rows.length -= count;
    this.draw(true);
  }

  clear() {
    this.rows = [];
    this.marked = null;
    this.#body.replaceChildren(); // rows that are gone must give no height: the browser would move the view
    this.#resize();
    this.#scrollTo(0);
    this.draw(true);
  }

  /** Draws a row anew. @param {Row} row */
  redraw(row) {
    this.#nodes.delete(row);
    this.draw(true);
  }

  redrawAll() {
    this.#nodes = new WeakMap();
    this.draw(true);
  }

  /** Marks a row and shows it in the middle, if it is not in sight. @param {Row | null} row @param {boolean} show */
  mark(row, show) {
    const before = this.marked;
    this.marked = row;
    for (const one of [before, row]) if (one) this.#nodes.delete(one);
    const index = row && show ? this.rows.indexOf(row) : -1;
    if (index >= 0) {
      this.stick = false;
      this.#resize();
      this.#scrollTo(index * this.#height - this.box.clientHeight / 2);
    }
    this.draw(true);
  }

  /** Keeps what is in sight after `count` rows came above. @param {number} count */
  #shift(count) {
    const top = this.box.scrollTop;
    this.#resize();
    if (!this.stick) this.#scrollTo(top + count * this.#height);
    this.draw(true);
  }

  /** @param {number} top */
  #scrollTo(top) {
    this.box.scrollTop = top;
    this.#place = this.box.scrollTop;
  }

  #resize() {
    this.pad.style.height = `${this.rows.length * this.#height}px`;
  }

  /** Draws with the next frame of the screen. @param {boolean} [anew] */
  draw(anew = false) {
    if (anew) this.#drawn = "";
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      this.#draw();
    });
  }

  #draw() {
    const selection = getSelection();
    const selecting = selection && !selection.isCollapsed && this.box.contains(selection.anchorNode);
    this.#resize();
    if (this.stick && !selecting) this.#scrollTo(this.box.scrollHeight);
    const first = Math.max(0, Math.floor(this.box.scrollTop / this.#height) - BEYOND);
    const last = Math.min(this.rows.length, first + Math.ceil(this.box.clientHeight / this.#height) + 2 * BEYOND);
    const range = `${first} ${last}`;
    if (range === this.#drawn) return;
    this.#drawn = range;
    this.#body.style.transform = `translateY(${first * this.#height}px)`;
    this.#body.replaceChildren(...this.rows.slice(first, last).map((row) => this.#node(row)));
    const height = /** @type {HTMLElement | null} */ (this.#body.firstElementChild)?.getBoundingClientRect().height;
    if (height && Math.abs(height - this.#height) > 0.01) {
      this.#height = height;
      this.draw(true);
    }
  }

  /** @param {Row} row */
  #node(row) {
    let node = this.#nodes.get(row);
    if (!node) {
      node = this.render(row);
      node.classList.toggle("marked", row === this.marked);
      this.#nodes.set(row, node);
    }
    return node;
  }
}
