// One diagram: a metric of one or several jobs, ranks and attempts.

import { chooseTime, h } from "./dom.js";
import { duration, nearest, shown, smooth, table } from "./series.js";

/** @import { Part } from "./series.js" */
/** `of`: what the curves belong to, and so the diagrams that share a cursor.
 * @typedef {{smoothing: number, log: boolean, x: "steps" | "time", of: "rank" | "worker"}} View */

/** @type {Promise<void> | null} */
let loaded = null;

/** Loads uPlot, which is no module, once; after a failure the next call tries it again. */
export function loadPlot() {
  loaded ??= new Promise((done, failed) => {
    const lost = () => {
      loaded = null;
      failed(new Error("uPlot can't be loaded"));
    };
    const file = (/** @type {string} */ name) => new URL(`./vendor/${name}`, import.meta.url).href;
    document.head.append(
      h("link", { rel: "stylesheet", href: file("uPlot.min.css") }),
      h("script", { src: file("uPlot.iife.min.js"), load: () => done(), error: lost }),
    );
  });
  return loaded;
}

const HEIGHT = 220;
const LEGEND_MOST = 8; // series
const MOVED = 4; // pixels; a shorter way is a click
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]]; // of the jobs

export class Chart {
  /** @type {uPlot | null} */
  #plot = null;
  /** @type {Part[]} */
  #parts = [];
  #shape = "";
  #zoomed = false;
  /** @type {number | null} */
  #time = null;

  /** @param {string} name of the metric @param {string} mine name of the job whose log is on the page */
  constructor(name, mine) {
    this.name = name;
    this.mine = mine;
    this.facts = h("span", { class: "facts" });
    this.canvas = h("div", { class: "plot", tabindex: 0, role: "group" });
    this.element = h("figure", { class: "chart" }, h("figcaption", {}, h("b", {}, name), " ", this.facts), this.canvas);
    this.canvas.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.#fit()).observe(this.canvas);
  }

  /** Draws these parts; `axis`: what the steps count; `trouble`: shown in the caption.
   * @param {Part[]} parts @param {View} view @param {string} axis @param {string} trouble */
  show(parts, view, axis, trouble) {
    this.view = view;
    this.#parts = parts;
    const newest = parts.filter((part) => part.job === this.mine).at(-1) ?? parts.at(-1);
    this.facts.textContent = shown(newest?.values.findLast((value) => value !== null));
    if (trouble) this.facts.append(" ", h("strong", { class: "trouble" }, trouble));
    this.canvas.setAttribute("aria-label", `${this.name}: ${this.facts.textContent}`);
    const drawn = view.smoothing ? parts.flatMap((part) => [{ ...part, raw: true }, part]) : parts;
    const data = /** @type {uPlot.AlignedData} */ (table(drawn.map((part) => ({ x: this.#xs(part), y: this.#ys(part) }))));
    const shape = JSON.stringify([view, axis, drawn.map((part) => [part.job, part.rank, part.attempt])]);
    if (this.#plot && shape === this.#shape) {
      this.#plot.setData(data, !this.#zoomed);
      if (this.#zoomed) this.#plot.redraw();
      return;
    }
    this.#shape = shape;
    this.#zoomed = false;
    this.#plot?.destroy();
    this.#plot = new uPlot(this.#options(drawn, axis), data, this.canvas);
  }

  /** Draws a line at this time. @param {number | null} time */
  mark(time) {
    this.#time = time;
    this.#plot?.redraw(false);
  }

  /** Makes the diagram anew, as the colours of the page have changed. */
  forget() {
    this.#shape = "";
  }

  /** @param {Part} part */
  #xs(part) {
    return this.view?.x === "time" ? part.times.map((time) => time - this.#begin(part.job)) : part.steps;
  }

  /** @param {string} job */
  #begin(job) {
    return this.#parts.find((part) => part.job === job)?.times[0] ?? 0;
  }

  /** @param {Part} part */
  #ys(part) {
    const values = this.view?.smoothing && !part.raw ? smooth(part.values, this.view.smoothing) : part.values;
    return this.view?.log ? values.map((value) => (value !== null && value > 0 ? value : null)) : values;
  }

  #width() {
    return Math.max(200, Math.floor(this.canvas.clientWidth));
  }

  #fit() {
    if (this.#plot && this.#plot.width !== this.#width()) this.#plot.setSize({ width: this.#width(), height: HEIGHT });
  }

  /** @param {Part[]} parts @param {string} axis @returns {uPlot.Options} */
  #options(parts, axis) {
    const style = getComputedStyle(this.element);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim() || "#888";
    const jobs = [...new Set(parts.map((part) => part.job))];
    const ranks = new Set(parts.map((part) => part.rank));
    const attempts = new Set(parts.map((part) => part.attempt));
    const byTime = this.view?.x === "time";
    const line = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const text = `12px ${style.fontFamily}`;
    const shownX = byTime ? duration : shown;
    return {
      width: this.#width(),
      height: HEIGHT,
      cursor: { sync: { key: this.view?.of ?? "" }, drag: { x: true, y: false }, focus: { prox: 24 }, points: { size: 6 } },
      focus: { alpha: 0.35 },
      legend: { show: parts.length <= LEGEND_MOST },
      scales: { x: { time: false }, y: this.view?.of === "worker" ? { range: (_, __, most) => [0, 1.1 * most || 1] } : { distr: this.view?.log ? 3 : 1 } },
      axes: [
        { ...line, font: text, size: 30, values: (_, splits) => splits.map(shownX) },
        { ...line, font: text, size: 58, values: (_, splits) => splits.map((value) => (value === null ? "" : shown(value))) },
      ],
      series: [
        { label: byTime ? "time" : axis, value: (_, x) => (x === null ? "–" : shownX(x)) },
        ...parts.map((part) => {
          const place = ranks.size > 1 && part.rank !== null ? part.rank : jobs.indexOf(part.job);
          const label = [
            jobs.length > 1 ? part.job : "",
            ranks.size > 1 && part.rank !== null ? `${this.view?.of} ${part.rank}` : "",
            attempts.size > 1 ? `attempt ${part.attempt}` : "",
          ].filter(Boolean);
          return {
            label: `${label.join(", ") || this.name}${part.raw ? " (raw)" : ""}`,
            stroke: colour(`--curve-${place % 8}`),
            width: 1.5,
            alpha: part.raw ? 0.25 : 1,
            dash: ranks.size > 1 ? DASHES[jobs.indexOf(part.job) % DASHES.length] : [],
            points: { show: part.steps.length < 2 ? true : undefined },
            value: (/** @type {uPlot} */ _, /** @type {number | null} */ value) => shown(value),
          };
        }),
      ],
      hooks: {
        setSelect: [(plot) => (this.#zoomed ||= plot.select.width > 0)],
        draw: [(plot) => this.#drawMark(plot, colour("--accent"))],
        ready: [(plot) => this.#listen(plot)],
      },
    };
  }

  /** @param {uPlot} plot */
  #listen(plot) {
    let from = 0;
    plot.over.addEventListener("mousedown", (event) => (from = event.clientX));
    plot.over.addEventListener("dblclick", () => (this.#zoomed = false));
    plot.over.addEventListener("click", (event) => {
      if (Math.abs(event.clientX - from) < MOVED) this.#choose(plot);
    });
  }

  /** The log shows what was printed at the cursor. @param {uPlot} plot */
  #choose(plot) {
    const left = plot.cursor.left ?? -1;
    const part = this.#parts.filter((one) => one.job === this.mine && one.times.length).at(-1);
    if (left < 0 || !part) return;
    chooseTime(part.times[nearest(this.#xs(part), plot.posToVal(left, "x"))], "curves");
  }

  /** Arrows move the cursor, Enter shows the log there. @param {KeyboardEvent} event */
  #key(event) {
    const plot = this.#plot;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!plot || (!step && event.key !== "Enter")) return;
    event.preventDefault();
    if (!step) return this.#choose(plot);
    const xs = plot.data[0];
    const index = Math.min(xs.length - 1, Math.max(0, (plot.cursor.idx ?? xs.length) + step));
    plot.setCursor({ left: plot.valToPos(xs[index], "x"), top: HEIGHT / 3 });
  }

  /** @param {uPlot} plot @param {string} colour */
  #drawMark(plot, colour) {
    const time = this.#time;
    const part = this.#parts.find((one) => one.job === this.mine && time !== null && time <= (one.times.at(-1) ?? 0))
      ?? this.#parts.filter((one) => one.job === this.mine).at(-1);
    if (time === null || !part) return;
    const x = Math.round(plot.valToPos(this.#xs(part)[nearest(part.times, time)], "x", true));
    const { left, top, width, height } = plot.bbox;
    if (x < left || x > left + width) return;
    plot.ctx.save();
    plot.ctx.fillStyle = colour;
    plot.ctx.fillRect(x, top, devicePixelRatio, height);
    plot.ctx.restore();
  }
}
