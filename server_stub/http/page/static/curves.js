// The curves of a job: all metrics, beside those of other jobs (`?with=a,b`), live while the job runs; and in a section of
// their own what its workers use, while that is in sight.

import { ApiError, call, job, jobPath } from "./api.js";
import { Chart, loadPlot } from "./chart.js";
import { h, keepInAddress, labelled, onTime, status } from "./dom.js";
import { parts, trouble } from "./series.js";

/** @import { Metrics, Curve } from "./series.js" */
/** @import { View } from "./chart.js" */

const FIRST = 12; // diagrams that are shown without a question
const POINTS = 1000; // of a curve
const POINTS_OF_ALL = 60_000; // of a metric, where all ranks are shown
const POLL_MS = [5_000, 60_000];
const SAMPLES_MS = 10_000; // shortest pause for what the workers use
const SHARED = { "Cache-Control": "max-age=2" }; // pages of the same job share answers
const SOON_MS = 1_000; // after an answer with a part of the log
const OLDER = 10; // the pause is this part of the time that the curves span

/** @param {HTMLElement} section */
export function start(section) {
  if (!job) return;
  const { name = "", owner } = job;
  const here = job;
  const ofWorkers = section.id === "usage";
  let inSight = !ofWorkers;
  const address = new URLSearchParams(ofWorkers ? "" : location.search);
  /** @type {View} */
  const view = { smoothing: 0, log: false, x: ofWorkers ? "time" : "steps", of: ofWorkers ? "worker" : "rank" };
  let others = address.getAll("with").join(",").split(",").filter(Boolean);
  let rank = ofWorkers ? "workers" : "0";
  let most = FIRST;
  /** @type {Map<string, Metrics>} */
  const found = new Map();
  /** @type {Map<string, Chart>} */
  const charts = new Map();
  let timer = 0;
  let asked = 0; // the newest request

  const message = status();
  const grid = h("div", { class: "charts" });
  const chips = h("span", { class: "chips" });
  const all = h("button", { type: "button", hidden: true, click: () => ((most = Infinity), draw()) });
  const ranks = h("select", {}, h("option", { value: "0" }, "0"), h("option", { value: "all" }, "all"));
  const smoothing = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: 0 });
  const log = h("input", { type: "checkbox" });
  const axis = h("select", {}, h("option", { value: "steps" }, "steps"), h("option", { value: "time" }, "time"));
  const other = h("input", { type: "text", placeholder: "name of a job", "aria-label": "Compare with" });

  /** @param {string} of */
  async function fetchOne(of) {
    const path = of === name ? jobPath("/metrics") : `api/v1/jobs/${encodeURIComponent(of)}/metrics`;
    const points = rank !== "0" ? Math.max(20, Math.floor(POINTS_OF_ALL / (8 * Number(here.workers || 1)))) : POINTS;
    const answer = await call("GET", path, { owner, rank, points: Math.min(points, POINTS) }, { headers: SHARED });
    return /** @type {Metrics} */ (await answer.json());
  }

  async function refresh() {
    clearTimeout(timer);
    const mine = ++asked;
    const running = here.final !== "true";
    const wanted = [name, ...others];
    const answers = await Promise.allSettled(wanted.map(fetchOne));
    if (mine !== asked) return;
    let said = "";
    let complete = true;
    let again = running;
    answers.forEach((answer, i) => {
      if (answer.status === "fulfilled") {
        found.set(wanted[i], answer.value);
        complete &&= answer.value.complete;
      } else if (answer.reason instanceof ApiError) {
        said ||= `${wanted[i]}: ${answer.reason.message}`;
        if (wanted[i] === name && answer.reason.status < 500) again = false;
      } else again = true;
    });
    const dropped = found.get(name)?.dropped;
    if (!complete) said ||= "A part of the log is not read yet.";
    else if (dropped && !ofWorkers) said ||= `${dropped} values are missing: the script logged more than can be kept.`;
    message.say(said);
    const needed = found.get(name)?.curves.length || others.length;
    if (needed && !(await loadPlot().then(() => true, () => false))) {
      message.say("The curves can't be drawn now: a file of this page was not loaded. It is tried again.");
      again = true;
    } else draw();
    if (again || !complete) timer = window.setTimeout(refreshIfSeen, complete ? pause() : SOON_MS);
  }

  /** Milliseconds until the next request: the longer the curves, the less a moment changes them. Where there are none,
   * the time of the page counts. */
  function pause() {
    const times = found.get(name)?.curves[0]?.times ?? [];
    const ran = times.length ? 1000 * (times[times.length - 1] - times[0]) : performance.now();
    return Math.min(POLL_MS[1], Math.max(ofWorkers ? SAMPLES_MS : POLL_MS[0], ran / OLDER));
  }

  function refreshIfSeen() {
    if (!inSight) return;
    if (document.hidden) document.addEventListener("visibilitychange", () => void refresh(), { once: true });
    else void refresh();
  }

  /** The curves of one metric in all jobs. @param {string} metric */
  function curvesOf(metric) {
    /** @type {{job: string, curve: Curve}[]} */
    const curves = [];
    for (const of of [name, ...others]) {
      for (const curve of found.get(of)?.curves ?? []) if (curve.name === metric) curves.push({ job: of, curve });
    }
    return curves;
  }

  function draw() {
    const names = [...new Set([name, ...others].flatMap((of) => found.get(of)?.curves.map((curve) => curve.name) ?? []))];
    names.sort((a, b) => Number(/loss/i.test(b)) - Number(/loss/i.test(a)));
    if (names.length || others.length) section.hidden = false;
    all.hidden = names.length <= most;
    all.textContent = `Show all ${names.length} metrics`;
    const wanted = names.slice(0, most);
    for (const metric of wanted) {
      const chart = charts.get(metric) ?? new Chart(metric, name);
      if (!charts.has(metric)) grid.append(chart.element);
      charts.set(metric, chart);
      const curves = curvesOf(metric);
      const bad = curves.map(({ curve }) => trouble(curve)).find(Boolean) ?? "";
      chart.show(curves.flatMap(({ job: of, curve }) => parts(of, curve)), { ...view }, curves[0]?.curve.axis ?? "step", bad);
    }
    for (const [metric, chart] of charts) {
      if (!wanted.includes(metric)) {
        chart.element.remove();
        charts.delete(metric);
      }
    }
    wanted.forEach((metric, i) => {
      const { element } = /** @type {Chart} */ (charts.get(metric));
      if (grid.children[i] !== element) grid.insertBefore(element, grid.children[i] ?? null);
    });
  }

  /** @param {string[]} names */
  function compare(names) {
    for (const gone of others) if (!names.includes(gone)) found.delete(gone);
    others = [...new Set(names)].filter((one) => one && one !== name);
    keepInAddress("with", others.join(","));
    chips.replaceChildren(
      ...others.map((one) =>
        h("button", { type: "button", class: "chip", "aria-label": `Without ${one}`, click: () => compare(others.filter((each) => each !== one)) }, `${one} ×`),
      ),
    );
    void refresh();
  }

  smoothing.addEventListener("input", () => ((view.smoothing = Number(smoothing.value)), draw()));
  log.addEventListener("change", () => ((view.log = log.checked), draw()));
  axis.addEventListener("change", () => ((view.x = axis.value === "time" ? "time" : "steps"), draw()));
  ranks.addEventListener("change", () => ((rank = ranks.value), void refresh()));
  let seen = `${here.attempt} ${here.final}`;
  document.addEventListener("job", () => {
    if (seen === (seen = `${here.attempt} ${here.final}`)) return;
    refreshIfSeen();
  });
  onTime("log", (time) => charts.forEach((chart) => chart.mark(time)));
  onTime("curves", (time) => charts.forEach((chart) => chart.mark(time)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    charts.forEach((chart) => chart.forget());
    draw();
  });

  if (ofWorkers) {
    section.append(message.element, grid, all);
    const seen = (/** @type {IntersectionObserverEntry[]} */ entries) => {
      inSight = entries.some((entry) => entry.isIntersecting);
      refreshIfSeen();
    };
    new IntersectionObserver(seen).observe(document.getElementById("workers") ?? section);
    return;
  }
  section.append(
    h(
      "form",
      { class: "controls", submit: (event) => (event.preventDefault(), compare([...others, other.value.trim()]), (other.value = "")) },
      labelled("smoothing", smoothing),
      labelled("log scale", log),
      labelled("over", axis),
      labelled("rank", ranks),
      other,
      h("button", { type: "submit" }, "Compare"),
      chips,
    ),
    message.element,
    grid,
    all,
  );
  compare(others);
}
