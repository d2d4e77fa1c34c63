// Curves of the API to columns that uPlot draws. Pure.

/** A curve of `GET /jobs/{name}/metrics`. Numbers that JSON can't hold are strings.
 * @typedef {{name: string, rank: number | null, axis: string, steps: number[], times: number[],
 *   values: (number | string)[], points: number, thinned: boolean}} Curve */
/** One attempt of one curve; `values` has null where the value is no number.
 * @typedef {{job: string, rank: number | null, attempt: number, steps: number[], times: number[],
 *   values: (number | null)[], raw?: boolean}} Part */
/** @typedef {{job: string, attempt: number, curves: Curve[], complete: boolean, dropped: number}} Metrics */

/** @param {number | string} value */
const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);

/** The attempts of a curve: each begins where the steps go back. @param {string} job @param {Curve} curve @returns {Part[]} */
export function parts(job, curve) {
  /** @type {Part[]} */
  const found = [];
  curve.steps.forEach((step, i) => {
    let part = found.at(-1);
    if (!part || step < part.steps[part.steps.length - 1]) {
      part = { job, rank: curve.rank, attempt: found.length + 1, steps: [], times: [], values: [] };
      found.push(part);
    }
    part.steps.push(step);
    part.times.push(curve.times[i]);
    part.values.push(finite(curve.values[i]));
  });
  return found;
}

/** A sentence about the first value that is no number; "" if there is none. @param {Curve} curve */
export function trouble(curve) {
  const at = curve.values.findIndex((value) => finite(value) === null);
  return at < 0 ? "" : `${curve.values[at]} at ${curve.axis} ${curve.steps[at]}`;
}

/** The running mean with this weight of the past (0 to 1), without the bias of its beginning.
 * @param {(number | null)[]} values @param {number} weight */
export function smooth(values, weight) {
  let sum = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

/** The parts as one table: x, then a column each. `undefined`: this part has no such x.
 * @param {{x: number[], y: (number | null)[]}[]} columns @returns {(number | null | undefined)[][]} */
export function table(columns) {
  const all = [...new Set(columns.flatMap(({ x }) => x))].sort((a, b) => a - b);
  const place = new Map(all.map((x, i) => [x, i]));
  const filled = columns.map(({ x, y }) => {
    const column = new Array(all.length);
    x.forEach((value, i) => (column[/** @type {number} */ (place.get(value))] = y[i]));
    return column;
  });
  return [all, ...filled];
}

/** The index of the number nearest to `x`; the numbers grow. @param {number[]} numbers @param {number} x */
export function nearest(numbers, x) {
  let low = 0;
  let high = numbers.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - numbers[low - 1] < numbers[low] - x ? low - 1 : low;
}

/** A number as people read it. @param {number | null | undefined} value */
export function shown(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (value === 0 || Number.isInteger(value)) return size < 1e7 ? String(value) : value.toExponential(3);
  return size >= 1e-4 && size < 1e6 ? String(Number(value.toPrecision(5))) : value.toExponential(3);
}

/** `1:02:03`, of seconds. @param {number} seconds */
export function duration(seconds) {
  const whole = Math.round(Math.abs(seconds));
  const two = (/** @type {number} */ n) => String(n % 60).padStart(2, "0");
  const text = whole < 3600 ? `${Math.floor(whole / 60)}:${two(whole)}` : `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60))}:${two(whole)}`;
  return seconds < 0 ? `-${text}` : text;
}
