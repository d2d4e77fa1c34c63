// The log of a job: its lines with their times, live, filtered, searched.

import { job, jobPath, url } from "./api.js";
import { nodes } from "./ansi.js";
import { chooseTime, h, keepInAddress, labelled, onTime, status } from "./dom.js";
import { readFrames, withParams } from "./frames.js";
import { LogWindow } from "./log_window.js";
import { Assembler, head, seconds } from "./records.js";
import { RowList } from "./rows.js";

/** @import { Params } from "./frames.js" */
/** @import { Row } from "./records.js" */

const FOUND_MAX = 5000; // lines of a search that are shown, the newest
const STREAMS = ["stdout", "stderr", "train.log", "launcher"];
const LITERAL = /[.*+?^${}()|[\]\\#&~\s-]/g; // as re.escape of Python

/** @param {HTMLElement} section */
export function start(section) {
  if (!job) return;
  const { owner } = job;
  const path = jobPath("/logs");
  const address = new URLSearchParams(location.search);
  const message = status();
  const box = h("div", { class: "log-box", tabindex: 0, role: "region", "aria-label": "Log" });
  const bars = h("div", { class: "log-bars", hidden: true });
  const line = h("p", { class: "log-line", hidden: true });
  const rank = h("input", { type: "text", inputmode: "numeric", size: 5, placeholder: "all", value: address.get("rank") ?? "" });
  const stream = h("select", {}, h("option", { value: "" }, "all"), ...STREAMS.map((name) => h("option", {}, name)));
  const times = h("input", { type: "checkbox" });
  const live = h("input", { type: "checkbox", checked: true });
  const words = h("input", { type: "search", placeholder: "in the whole log", "aria-label": "Search the log" });
  const regular = h("input", { type: "checkbox" });
  const download = h("a", { class: "button", download: `${job.name}.log` }, "Download");
  const found = h("div", { class: "log-found", hidden: true });
  /** @type {Row[] | null} */
  let results = null;
  let searching = new AbortController();

  const list = new RowList(box, render, (edge) => {
    if (results) return;
    if (edge) void log.more(edge);
    if (log.following) live.checked = list.stick;
  });
  let log = open();

  /** @param {Row} row */
  function render(row) {
    const element = h("div", { class: row.note ? "row note" : `row s-${row.stream === "stderr" ? "err" : "out"}` });
    if (times.checked && row.time) element.append(h("time", {}, `${clock(row.time)} `));
    const place = head(row);
    if (place) element.append(h("span", { class: `rank r-${(row.rank ?? 0) % 8}${row.rank === null ? " none" : ""}` }, place), " ");
    element.append(...nodes(row.text));
    if (!row.note) element.addEventListener("click", () => choose(row));
    return element;
  }

  /** @param {Row} row */
  function choose(row) {
    if (!getSelection()?.isCollapsed) return;
    line.hidden = false;
    line.replaceChildren(h("b", {}, `${clock(row.time)} ${head(row)} `), ...nodes(row.text));
    keepInAddress("t", row.time);
    chooseTime(seconds(row.time), "log");
    if (results) {
      endSearch();
      void showTime(row.time, row);
      return;
    }
    list.stick = live.checked = false; // it stays where it is
    list.mark(row, false);
  }

  /** @returns {Params} */
  function filter() {
    const ranks = rank.value.match(/\d+/g) ?? [];
    return { owner, rank: ranks, stream: stream.value };
  }

  function open() {
    download.href = String(url(withParams(path, { ...filter(), timestamps: true })));
    return new LogWindow(path, filter(), list, {
      bars: (rows) => {
        bars.hidden = !rows.length;
        bars.replaceChildren(...rows.map(render));
      },
      away,
      failed: (error) => message.say(error.message),
      following: (following) => {
        live.checked = following;
        box.classList.toggle("following", following);
      },
    });
  }

  /** @param {boolean} gone */
  function away(gone) {
    if (gone && !box.dataset.away) box.dataset.away = new Date().toLocaleTimeString();
    if (!gone) delete box.dataset.away;
    message.say(gone ? `The server has not answered since ${box.dataset.away}; trying again.` : "");
  }

  function reopen() {
    keepInAddress("rank", rank.value);
    message.say("");
    endSearch();
    log.close();
    log = open();
    log.showEnd();
  }

  /** Shows the lines around a time. @param {string} stamp @param {Row} [row] the row to mark */
  async function showTime(stamp, row) {
    const time = seconds(stamp);
    try {
      if (!log.covers(time)) await log.showFrom(stamp);
    } catch (error) {
      return message.say(/** @type {Error} */ (error).message);
    }
    const same = row && list.rows.find((one) => one.seq === row.seq && one.worker === row.worker && one.attempt === row.attempt);
    list.mark(same ?? log.rowAt(time), true);
  }

  async function search() {
    searching.abort();
    if (!words.value) return endSearch();
    searching = new AbortController();
    const stop = searching;
    const grep = regular.checked ? words.value : words.value.replace(LITERAL, "\\$&");
    const assembler = new Assembler();
    /** @type {Row[]} */
    const rows = [];
    message.say("Searching …");
    try {
      await readFrames(path, { ...filter(), grep, tail: FOUND_MAX }, new Map(), stop.signal, (frame) => {
        rows.push(...assembler.add(frame));
      });
    } catch (error) {
      if (!stop.signal.aborted) message.say(/** @type {Error} */ (error).message);
      return;
    }
    message.say("");
    log.close();
    results = rows;
    bars.hidden = true;
    list.clear();
    list.stick = true;
    list.append(rows);
    found.hidden = false;
    const count = rows.filter((row) => !row.note).length;
    const what = count === 1 ? "1 line" : count < FOUND_MAX ? `${count} lines` : `The newest ${FOUND_MAX} lines`;
    found.replaceChildren(
      h("span", { role: "status" }, `${what} with “${words.value}”; choose one to see it in the log. `),
      h("button", { type: "button", click: reopen }, "Back to the log"),
    );
  }

  function endSearch() {
    searching.abort();
    if (results) list.clear();
    results = null;
    found.hidden = true;
  }

  rank.addEventListener("change", reopen);
  stream.addEventListener("change", reopen);
  times.addEventListener("change", () => list.redrawAll());
  live.addEventListener("change", () => {
    if (!live.checked) list.stick = false;
    else if (log.following) {
      list.stick = true;
      list.draw(true);
    } else reopen();
  });
  box.addEventListener("keydown", (event) => {
    if (results || (event.key !== "Home" && event.key !== "End")) return;
    event.preventDefault();
    if (event.key === "End") reopen();
    else void log.showFrom("").catch((error) => message.say(error.message));
  });
  onTime("curves", (time) => {
    const stamp = `${new Date(time * 1000).toISOString().slice(0, -1)}999Z`;
    endSearch();
    keepInAddress("t", stamp);
    void showTime(stamp);
    section.scrollIntoView({ block: "nearest" });
  });

  section.append(
    h(
      "form",
      { class: "controls", submit: (event) => (event.preventDefault(), void search()) },
      words,
      labelled("regex", regular),
      h("button", { type: "submit" }, "Search"),
      labelled("ranks", rank),
      labelled("stream", stream),
      labelled("times", times),
      labelled("follow", live),
      h("button", { type: "button", click: () => void log.showFrom("").catch((error) => message.say(error.message)) }, "First lines"),
      h("button", { type: "button", click: reopen }, "Last lines"),
      download,
    ),
    message.element,
    found,
    box,
    bars,
    line,
  );
  const at = address.get("t");
  if (at && !Number.isNaN(Date.parse(at))) void showTime(at);
  else log.showEnd();
}

/** `10:58:55.123`, in local time. @param {string} stamp */
function clock(stamp) {
  return `${new Date(stamp).toLocaleTimeString(undefined, { hour12: false })}.${stamp.slice(20, 23)}`;
}
