// The part of a log that is in memory: pages of rows with the cursors before and after them. At most MOST rows.
//
// It follows the end of the log, or stands anywhere in it and reads pages on demand.

import { follow, formatCursor, parseCursor, readFrames } from "./frames.js";
import { Assembler, seconds } from "./records.js";

/** @import { Cursor, Frame, Params } from "./frames.js" */
/** @import { Row } from "./records.js" */
/** @import { RowList } from "./rows.js" */

export const PAGE = 1000; // lines
const MOST = 20_000; // rows
const UNREAD = 5 * PAGE; // rows that may come while the reader looks at older ones

/** @typedef {{before: string, after: string, count: number}} Page */
/**
 * `bars`: the progress to draw below the lines; `away`: the server does not answer; `failed`: the log can't be read;
 * `following`: whether new lines are added.
 * @typedef {{bars: (bars: Row[]) => void, away: (away: boolean) => void, failed: (error: Error) => void,
 *   following: (following: boolean) => void}} Events
 */

export class LogWindow {
  /** @type {Page[]} */
  #pages = [];
  #stop = new AbortController();
  #reading = false;
  #atEnd = false;
  #following = false;
  #ended = false;

  /** @param {string} path @param {Params} params @param {RowList} list @param {Events} events */
  constructor(path, params, list, events) {
    this.path = path;
    this.params = params;
    this.list = list;
    this.events = events;
  }

  get following() {
    return this.#following;
  }

  close() {
    this.#stop.abort();
  }

  /** Shows the newest lines, and each new one. */
  showEnd() {
    this.#restart();
    this.list.clear();
    this.list.stick = true;
    this.#follow({ ...this.params, tail: PAGE }, new Map(), true);
  }

  /** Shows the lines from a time on, or from the first one. Returns false if nothing was printed since. @param {string} since */
  async showFrom(since) {
    const signal = this.#restart();
    this.list.clear();
    this.list.stick = false;
    this.#reading = true;
    try {
      await this.#page(since ? { ...this.params, since } : this.params, new Map(), signal, false);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      if (signal === this.#stop.signal) this.#reading = false;
    }
    if (since && !signal.aborted) await this.more("top");
    return this.list.rows.length > 0;
  }

  /** Reads the page above or below. @param {"top" | "bottom"} edge */
  async more(edge) {
    if (this.#reading || (edge === "bottom" && this.#following)) return;
    const signal = this.#stop.signal;
    this.#reading = true;
    try {
      if (edge === "top") await this.#older(signal);
      else if (this.#atEnd && !this.#ended) this.#follow(this.params, parseCursor(this.#pages.at(-1)?.after ?? ""), false);
      else if (!this.#atEnd) await this.#page(this.params, parseCursor(this.#pages.at(-1)?.after ?? ""), signal, true);
    } catch (error) {
      if (!signal.aborted) this.events.failed(/** @type {Error} */ (error));
    } finally {
      if (signal === this.#stop.signal) this.#reading = false;
    }
  }

  /** The row that was printed last before a time. @param {number} time */
  rowAt(time) {
    const rows = this.list.rows;
    for (let i = rows.length - 1; i >= 0; i--) if (!rows[i].note && seconds(rows[i].time) <= time) return rows[i];
    return rows.find((row) => !row.note) ?? null;
  }

  /** Whether the lines of this time are here. @param {number} time */
  covers(time) {
    const first = this.list.rows.find((row) => !row.note);
    const last = this.list.rows.findLast((row) => !row.note);
    if (!first || !last) return false;
    return seconds(first.time) <= time && (this.#following || this.#ended || time <= seconds(last.time));
  }

  #restart() {
    this.#stop.abort();
    this.#stop = new AbortController();
    this.#pages = [];
    this.#atEnd = this.#ended = this.#reading = false;
    this.#setFollowing(false);
    this.events.bars([]);
    return this.#stop.signal;
  }

  /** @param {boolean} following */
  #setFollowing(following) {
    this.#following = this.list.grows = following;
    this.events.following(following);
  }

  /** @param {Params} params @param {Cursor} cursor @param {boolean} fresh the first page of an empty window */
  async #follow(params, cursor, fresh) {
    const signal = this.#stop.signal;
    const stream = new Assembler();
    let page = this.#newPage(formatCursor(cursor));
    let before = page.before;
    this.#setFollowing(true);
    const take = (/** @type {Frame} */ frame) => {
      const rows = stream.add(frame);
      if (fresh && frame.kind === "state") page.before = frame.facts.cursor ?? "";
      fresh = false;
      if (page.count >= PAGE && rows.length) page = this.#newPage(before);
      page.after = before = formatCursor(cursor);
      page.count += rows.length;
      this.list.append(rows);
      stream.grown.forEach((row) => this.list.redraw(row));
      stream.grown.clear();
      this.events.bars(stream.bars());
      if (this.list.stick) this.#cutTop();
      else if (this.list.rows.length > MOST + UNREAD) this.#detach();
    };
    try {
      await follow(this.path, params, cursor, signal, take, this.events.away);
      this.#ended = this.#atEnd = true;
      this.#setFollowing(false);
    } catch (error) {
      if (!signal.aborted) this.events.failed(/** @type {Error} */ (error));
    }
  }

  /** Stops following, as the reader looks at older rows. */
  #detach() {
    this.#stop.abort();
    this.#stop = new AbortController();
    this.#atEnd = this.#reading = false;
    this.events.bars([]);
    this.#setFollowing(false);
  }

  /** @param {string} before */
  #newPage(before) {
    const page = { before, after: before, count: 0 };
    this.#pages.push(page);
    return page;
  }

  /** Reads a page forward. @param {Params} params @param {Cursor} cursor @param {AbortSignal} signal @param {boolean} resumed */
  async #page(params, cursor, signal, resumed) {
    const stream = new Assembler();
    const page = this.#newPage(formatCursor(cursor));
    const wanted = resumed ? { ...params, cursor: formatCursor(cursor) } : params;
    let over = false;
    await readFrames(this.path, wanted, cursor, signal, (frame) => {
      if (!resumed && frame.kind === "state" && frame.facts.cursor) page.before = frame.facts.cursor;
      const rows = stream.add(frame);
      over = frame.kind === "end";
      page.after = formatCursor(cursor);
      page.count += rows.length;
      this.list.append(rows);
      return page.count < PAGE;
    });
    this.#atEnd = over;
    this.#cutTop();
  }

  /** Reads the page above the first one. @param {AbortSignal} signal */
  async #older(signal) {
    const first = this.#pages[0];
    if (!first?.before) return;
    const stream = new Assembler();
    /** @type {Row[]} */
    const rows = [];
    const page = { before: "", after: first.before, count: 0 };
    const params = { ...this.params, tail: PAGE, before: first.before };
    await readFrames(this.path, params, new Map(), signal, (frame) => {
      if (frame.kind === "state") page.before = frame.facts.cursor ?? "";
      else if (frame.kind === "log" || frame.kind === "gap") rows.push(...stream.add(frame));
    });
    page.count = rows.length;
    if (!rows.length) page.before = "";
    this.#pages.unshift(page);
    this.list.prepend(rows);
    this.#cutBottom();
  }

  #cutTop() {
    while (this.#pages.length > 1 && this.list.rows.length - this.#pages[0].count >= MOST) {
      this.list.cutTop(/** @type {Page} */ (this.#pages.shift()).count);
    }
  }

  #cutBottom() {
    while (this.#pages.length > 1 && this.list.rows.length - /** @type {Page} */ (this.#pages.at(-1)).count >= MOST) {
      if (this.#following) this.#detach();
      this.#atEnd = this.#ended = false;
      this.list.cutBottom(/** @type {Page} */ (this.#pages.pop()).count);
    }
  }
}
