// Records of a log (client_lib.launcher_protocol.record) to the rows that are shown. Pure.
//
// A record that goes on is joined with the next one of its rank and stream. Progress (a line that ended with \r) is
// drawn below the lines, as `client-lib logs -f` does on a terminal; a line of the same rank and stream ends it.

/**
 * A row of the log. `note`: a message about the log itself.
 * @typedef {{time: string, seq: number, attempt: number, worker: number, rank: number | null, stream: string,
 *   text: string, note: boolean}} Row
 */

/** @import { Frame } from "./frames.js" */

const ROW_MAX = 65_536; // characters; a longer line continues on the next row
const FEW = 4; // ranks; from here on one bar is shown for all
const BARS_MAX = 8;
const STEP = /.*(?<![\d.])(\d+)\/\d/; // the last one: `580/1000` in `Epoch 1/3: 58%|...| 580/1000`

/** Microseconds since 1970 are more than a number of milliseconds holds: seconds with a fraction. @param {string} stamp */
export const seconds = (stamp) => Date.parse(`${stamp.slice(0, 19)}Z`) / 1000 + Number(`0${stamp.slice(19, -1)}`);

/** Puts consecutive frames together to rows. */
export class Assembler {
  /** Rows that go on, by rank and stream. @type {Map<string, Row>} */
  #open = new Map();
  /** @type {Map<string, Row>} */
  #bars = new Map();
  #attempt = 0;
  /** Rows of earlier frames that have grown. @type {Set<Row>} */
  grown = new Set();

  /** @param {Frame} frame @returns {Row[]} */
  add(frame) {
    /** @type {Row[]} */
    const rows = [];
    if (frame.kind === "end") rows.push(...this.end());
    if (frame.kind === "gap") rows.push(note(frame.attempt, `${frame.lines} lines of worker ${frame.worker} are gone`));
    if (frame.kind !== "log") return rows;
    if (frame.text && frame.attempt > this.#attempt) {
      rows.push(...this.end());
      if (frame.attempt > 1) rows.push(note(frame.attempt, `attempt ${frame.attempt}`));
      this.#attempt = frame.attempt;
    }
    for (let at = 0, next; (next = frame.text.indexOf("\n", at)) >= 0; at = next + 1) {
      this.#record(frame.text.slice(at, next), frame.attempt, frame.worker, rows);
    }
    return rows;
  }

  /** The last progress of each rank as rows: nothing follows. */
  end() {
    const rows = [...this.#bars.values()];
    this.#bars.clear();
    this.#open.clear();
    return rows;
  }

  /** @param {string} record @param {number} attempt @param {number} worker @param {Row[]} rows */
  #record(record, attempt, worker, rows) {
    const [seq, time, rank, marked] = record.split(" ", 4);
    if (marked === undefined) return; // no launcher wrote this
    let text = record.slice(seq.length + time.length + rank.length + marked.length + 4);
    const mark = marked.at(-1);
    const special = mark === "+" || mark === "~";
    const stream = special ? marked.slice(0, -1) : marked;
    const source = `${worker} ${rank} ${stream}`;
    const number = rank === "-" ? null : Number(rank);
    const row = { time, seq: Number(seq), attempt, worker, rank: number, stream, text, note: false };
    const before = this.#open.get(source);
    this.#open.delete(source);
    if (mark === "~") {
      this.#bars.set(source, row);
      return;
    }
    this.#bars.delete(source);
    if (before && before.text.length < ROW_MAX) {
      before.text += text;
      this.grown.add(before);
    } else rows.push(row);
    if (mark === "+") this.#open.set(source, before && before.text.length < ROW_MAX ? before : row);
  }

  /** The running progress bars by rank. From FEW ranks on it is the first one's, with the steps of all. */
  bars() {
    const bars = [...this.#bars.values()].sort((a, b) => (a.rank ?? -1) - (b.rank ?? -1) || a.worker - b.worker);
    const ranks = new Set(bars.map((bar) => bar.rank));
    const steps = bars.map((bar) => STEP.exec(bar.text)?.[1]);
    if (ranks.size < FEW || steps.includes(undefined)) return bars.slice(0, BARS_MAX);
    const all = steps.map(Number);
    const spread = `  [all ${ranks.size} ranks] step ${Math.min(...all)} to ${Math.max(...all)}`;
    return [{ ...bars[0], text: bars[0].text + spread }];
  }
}

/** @param {number} attempt @param {string} text @returns {Row} */
export function note(attempt, text) {
  return { time: "", seq: -1, attempt, worker: 0, rank: null, stream: "", text: `… ${text} …`, note: true };
}

/** What stands before the line: its rank, or where it comes from. @param {Row} row */
export function head(row) {
  if (row.note) return "";
  if (row.rank !== null) return `[${row.rank}]`;
  return row.worker ? `[${row.stream} ${row.worker}]` : `[${row.stream}]`;
}
