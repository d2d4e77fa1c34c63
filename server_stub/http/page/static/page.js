// Keeps a page up to date by the REST API, and its keys. Rows and facts are drawn by the server alone: when the API tells
// of a change, the parts marked with data-live are taken from the page as it is now.
import { ApiError, call, job, jobPath } from "./api.js";

const PAUSE_MS = 2000;
const SERVER_MS = 5000; // between two looks at the server's checks and figures
const SOON_MS = 200;
const RETRY_MS = 1000;
const PROGRESS_S = 10;
const DRAWN_MS = 60_000; // a running job is drawn again after this time: how long it took, and its files
const WAIT_S = 30;
const SPARK_POINTS = 48;
const MEMBERS = 1000;

const stale = /** @type {HTMLOutputElement | null} */ (document.getElementById("stale"));
const table = document.getElementById("jobs");
const server = document.getElementById("server");
/** @param {number} ms */
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

/** Wait while nobody sees the page. */
async function seen() {
  while (document.hidden) await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

/** Take the parts that changed from the page as the server shows it now. */
async function redraw() {
  const answer = await fetch(location.href, { cache: "no-store" });
  if (answer.status === 404) return location.assign(document.documentElement.dataset.base || "./");
  if (!answer.ok) throw new ApiError(answer.status, {});
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    const now = fresh.getElementById(part.id);
    if (!now || now.innerHTML === drawn.get(part.id) || part.querySelector("details.act[open]")) continue;
    drawn.set(part.id, now.innerHTML);
    const at = selected()?.dataset.name;
    const open = part.querySelector("details[open]") !== null;
    part.replaceChildren(...now.childNodes);
    if (open) part.querySelector("details:not(.act)")?.setAttribute("open", "");
    if (at) select(rows().find((row) => row.dataset.name === at));
  }
  const main = fresh.getElementById("job");
  if (job && main) {
    document.title = fresh.title;
    const icon = /** @type {HTMLLinkElement | null} */ (document.querySelector("link[rel=icon]"));
    const newest = fresh.querySelector("link[rel=icon]")?.getAttribute("href");
    if (icon && newest && icon.getAttribute("href") !== newest) icon.setAttribute("href", newest);
    Object.assign(job, main.dataset);
    document.getElementById("stacks")?.toggleAttribute("hidden", job.state !== "RUNNING" || job.observe !== "true");
    document.dispatchEvent(new CustomEvent("job", { detail: job }));
  }
  narrow();
  drawnAt = Date.now();
}

let drawnAt = Date.now();
/** HTML of each live part as the server sent it. @type {Map<string, string>} */
const drawn = new Map();
for (const part of document.querySelectorAll("[data-live]")) drawn.set(part.id, part.innerHTML);

// a page that nobody sees leaves its connection to others: a browser has six for a server
let waits = new AbortController();
document.addEventListener("visibilitychange", () => {
  waits.abort();
  waits = new AbortController();
});

/** What the API said of the table's jobs. */
let listed = "";

/** Ask the API, and wait for a change where it can; true: the page must be drawn again. */
async function changed() {
  if (server) return true;
  if (!job) {
    const asked = new URLSearchParams(location.search);
    const words = (asked.get("q") || "").split(/\s+/).filter(Boolean);
    const path = new URLSearchParams();
    if (!asked.get("q") && !asked.get("state") && !asked.get("group")) path.set("grouped", "true");
    for (const name of ["state", "owner", "cursor", "group"]) if (asked.get(name)) path.set(name, asked.get(name) || "");
    for (const word of words) if (word.includes("=")) path.append("label", word);
    const prefix = words.find((word) => !word.includes("="));
    if (prefix) path.set("name", prefix);
    let now = await (await call("GET", `api/v1/jobs?${path}`)).text();
    const open = asked.get("open") || "";
    if (document.querySelector("a.group[aria-expanded=true]")) {
      const members = { owner: open.slice(0, open.lastIndexOf("/")), group: open.slice(open.lastIndexOf("/") + 1) };
      now += await (await call("GET", "api/v1/jobs", { ...members, limit: MEMBERS })).text();
    }
    const before = listed;
    listed = now;
    return now !== before;
  }
  const running = job.state === "RUNNING"; // its progress changes without a new version
  const params = { owner: job.owner, after_version: job.version, wait: running ? PROGRESS_S : WAIT_S };
  const now = await (await call("GET", jobPath(), params, { signal: waits.signal })).json();
  if (String(now.version) !== job.version) return true;
  const codes = (now.attention ?? []).map((/** @type {{code: string}} */ each) => each.code).join(" ");
  return running && (Date.now() - drawnAt > DRAWN_MS || codes !== job.attention || !showProgress(now.progress ?? {}));
}

/** Show the progress in the elements that the server has drawn; false: some are not there yet.
 * @param {{done?: number | null, left_s?: number | null, metrics?: Record<string, number | string>}} progress */
function showProgress({ done, left_s: left, metrics }) {
  const bar = /** @type {HTMLProgressElement | null} */ (document.querySelector("#status progress"));
  const [part, rest] = document.querySelectorAll("#status .progress > span");
  const shown = document.querySelector("#status > .number");
  const [metric] = Object.entries(metrics ?? {});
  if ((!bar && typeof done === "number") || (!rest && typeof left === "number") || (!shown && metric)) return false;
  if (bar && typeof done === "number") {
    bar.value = done;
    part.textContent = `${Math.floor(done * 100)}%`;
  }
  if (rest) rest.textContent = typeof left === "number" ? `${about(left)} left` : "";
  if (shown && metric) shown.textContent = `${metric[0]} ${Number(Number(metric[1]).toPrecision(4))}`;
  return true;
}

/** The text of `client_lib.spec.wording.about`. @param {number} seconds */
function about(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129_600 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86_400).toFixed(1)} d`;
}

async function follow() {
  let since = "";
  while (!job || job.final !== "true") {
    await seen();
    try {
      if (await changed()) await redraw();
      drawSparks();
      if (stale && since) stale.hidden = true;
      since = "";
    } catch (problem) {
      listed = "";
      if (problem instanceof DOMException && problem.name === "AbortError") continue;
      if (problem instanceof ApiError && problem.status === 401) {
        tell("Your login has ended: ", "log in again");
        return;
      }
      since = since || new Date().toLocaleTimeString();
      tell(`The server does not answer; this page shows the state at ${since}`);
      await pause(RETRY_MS);
      continue;
    }
    await pause(job ? SOON_MS : server ? SERVER_MS : PAUSE_MS);
  }
}

/** @param {string} text @param {string} [link] leads to the login */
function tell(text, link) {
  if (!stale) return;
  const parts = /** @type {(string | HTMLElement)[]} */ ([text]);
  if (link) parts.push(Object.assign(document.createElement("a"), { href: location.href, textContent: link }));
  stale.replaceChildren(...parts);
  stale.hidden = false;
}

// --- the table: keys, search, sparklines

/** Rows that the search does not hide. @returns {HTMLElement[]} */
const rows = () => /** @type {HTMLElement[]} */ ([...(table?.querySelectorAll("tbody tr") ?? [])]).filter((row) => !row.hidden);
const selected = () => /** @type {HTMLElement | null} */ (table?.querySelector("tr.selected") ?? null);

/** @param {HTMLElement | undefined} row */
function select(row) {
  if (!row) return;
  selected()?.classList.remove("selected");
  row.classList.add("selected");
  row.scrollIntoView({ block: "nearest" });
}

const search = /** @type {HTMLInputElement | null} */ (document.getElementById("search"));

/** Hide the rows that have not all words; the button asks the server, which knows the other jobs too. */
function narrow() {
  const words = (search?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of table?.querySelectorAll("tbody tr") ?? []) {
    const text = (row.textContent || "").toLowerCase();
    /** @type {HTMLElement} */ (row).hidden = !words.every((word) => text.includes(word));
  }
}
search?.addEventListener("input", narrow);

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || !table) return;
  if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const all = rows();
  const at = all.findIndex((row) => row.classList.contains("selected"));
  if (event.key === "j") select(all[Math.min(at + 1, all.length - 1)]);
  else if (event.key === "k") select(all[Math.max(at - 1, 0)]);
  else if (event.key === "Enter" && !(event.target instanceof HTMLAnchorElement)) selected()?.querySelector("a")?.click();
  else if (event.key === "/") {
    event.preventDefault();
    search?.focus();
  }
});

/** Curves that were fetched: of an ended job until it is whole. @type {Map<string, {at: number, values: number[], name: string, whole: boolean}>} */
const curves = new Map();

let drawing = false;

/** Draw the losses, while the table goes on. */
function drawSparks() {
  if (drawing) return;
  drawing = true;
  sparks().catch(() => undefined).finally(() => (drawing = false)); // the next pass asks again
}

/** Draw the loss of each job that has one. */
async function sparks() {
  for (const row of rows()) {
    const { name = "", owner = "", state = "" } = row.dataset;
    const cell = row.querySelector(".loss");
    if (!cell || state === "PENDING") continue;
    const key = `${owner}/${name}/${state}`;
    let known = curves.get(key);
    if (!known || ((state === "RUNNING" || !known.whole) && Date.now() - known.at > 5 * PAUSE_MS)) {
      known = { at: Date.now(), ...(await loss(name, owner)) };
      curves.set(key, known);
    }
    if (known.values.length > 1 && row.isConnected) draw(cell, known.name, known.values);
  }
}

/** @param {string} name @param {string} owner */
async function loss(name, owner) {
  try {
    const path = `api/v1/jobs/${encodeURIComponent(name)}/metrics`;
    const found = await (await call("GET", path, { owner, points: SPARK_POINTS })).json();
    const curve = found.curves.find((/** @type {{name: string}} */ each) => /loss/i.test(each.name)) ?? found.curves[0];
    return { name: curve?.name ?? "", values: (curve?.values ?? []).map(Number), whole: found.complete };
  } catch (problem) {
    // a job that shows none does so for good
    if (problem instanceof ApiError) return { name: "", values: [], whole: [403, 404, 409].includes(problem.status) };
    throw problem;
  }
}

/** @param {Element} cell @param {string} name @param {number[]} values */
function draw(cell, name, values) {
  const known = values.filter(Number.isFinite);
  const low = Math.min(...known);
  const span = Math.max(...known) - low || 1;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS(svg.namespaceURI || "", "polyline");
  svg.setAttribute("viewBox", "0 0 60 16");
  svg.setAttribute("class", "spark");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `curve of ${name}`);
  const points = known.map((value, at) => `${((60 * at) / (known.length - 1 || 1)).toFixed(1)},${(15 - (14 * (value - low)) / span).toFixed(1)}`);
  line.setAttribute("points", points.join(" "));
  svg.append(line);
  if (!Number.isFinite(values.at(-1))) svg.append(lastOf(points)); // it ended in NaN or infinity
  cell.querySelectorAll("svg, .last").forEach((old) => old.remove());
  cell.prepend(svg);
  if (!cell.querySelector(".number")) {
    const last = document.createElement("span");
    last.className = "number last";
    last.textContent = `${name} ${Number(Number(values.at(-1)).toPrecision(4))}`;
    cell.append(last);
  }
}

/** A red point at the end of a sparkline. @param {string[]} points */
function lastOf(points) {
  const [x, y] = (points.at(-1) ?? "0,15").split(",");
  const circle = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  circle.setAttribute("cx", x);
  circle.setAttribute("cy", y);
  circle.setAttribute("r", "2.5");
  return circle;
}

narrow();
if (table || job || server) {
  follow();
}
