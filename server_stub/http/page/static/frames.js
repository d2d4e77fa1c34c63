// Reads the log of a job as frames (client_lib.spec.paths) and resumes after a broken connection. No DOM.

import { ApiError, call } from "./api.js";

/** Position in the logs: `attempt.worker` -> offset. @typedef {Map<string, number>} Cursor */
/** @typedef {{kind: "log", attempt: number, worker: number, end: number, text: string}} LogFrame */
/** @typedef {{kind: "gap", attempt: number, worker: number, lines: number}} GapFrame */
/** @typedef {{kind: "state" | "end", facts: JobFacts}} StateFrame */
/** @typedef {{state: string, reason: string, message: string, attempt: number, cursor?: string}} JobFacts */
/** @typedef {LogFrame | GapFrame | StateFrame} Frame */
/** Parameters of a request; those without a value are left out. @typedef {Record<string, string | number | boolean | string[] | undefined>} Params */

const FRAMES = "application/vnd.client-lib.log-frames";
const SILENT_MS = 45_000; // three heartbeats of the server
const HIDDEN_MS = 10_000; // a browser has six connections to a server: those of hidden pages are given back
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 5_000;

/** @param {string} text @returns {Cursor} */
export function parseCursor(text) {
  const pairs = text.split(",").filter(Boolean).map((part) => part.split(":"));
  return new Map(pairs.map(([place, offset]) => [place, Number(offset)]));
}

/** @param {Cursor} cursor */
export function formatCursor(cursor) {
  return [...cursor].map(([place, offset]) => `${place}:${offset}`).join(",");
}

/** `path` with these parameters. @param {string} path @param {Params} params */
export function withParams(path, params) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== "" && one !== false) query.append(name, String(one));
    }
  }
  return `${path}?${query}`;
}

/** Cuts the bytes of a body into frames. */
export class FrameReader {
  #rest = new Uint8Array(0);
  #decoder = new TextDecoder();

  /** The frames that are whole now. @param {Uint8Array} chunk @returns {Frame[]} */
  push(chunk) {
    let buffer = chunk;
    if (this.#rest.length) {
      buffer = new Uint8Array(this.#rest.length + chunk.length);
      buffer.set(this.#rest);
      buffer.set(chunk, this.#rest.length);
    }
    const frames = [];
    let at = 0;
    for (let newline; (newline = buffer.indexOf(10, at)) >= 0; ) {
      const [word, ...rest] = this.#decoder.decode(buffer.subarray(at, newline)).split(" ");
      const size = word === "@log" ? Number(rest[3]) : 0;
      const begin = newline + 1;
      if (begin + size > buffer.length) break;
      const frame = this.#frame(word, rest, buffer.subarray(begin, begin + size));
      if (frame) frames.push(frame);
      at = begin + size;
    }
    this.#rest = buffer.slice(at);
    return frames;
  }

  /** @param {string} word @param {string[]} rest @param {Uint8Array} data @returns {Frame | null} */
  #frame(word, rest, data) {
    const [attempt, worker, number] = rest.map(Number);
    if (word === "@log") return { kind: "log", attempt, worker, end: number, text: this.#decoder.decode(data) };
    if (word === "@gap") return { kind: "gap", attempt, worker, lines: number };
    if (word === "@state") return { kind: "state", facts: JSON.parse(rest.join(" ")) };
    if (word === "@end") return { kind: "end", facts: JSON.parse(rest.join(" ")) };
    if (word.startsWith("@")) return null; // a heartbeat, or a frame of a newer server
    throw new Error("this is no log stream");
  }
}

/**
 * Reads one body; `take` gets each frame and ends the reading with `false`. Moves `cursor` before `take` is called. Returns true after the last frame, or if `take` ended it; false for a body that was cut.
 * @param {string} path @param {Params} params @param {Cursor} cursor @param {AbortSignal} signal
 * @param {(frame: Frame) => boolean | void} take
 */
export async function readFrames(path, params, cursor, signal, take) {
  const own = new AbortController();
  const stop = () => own.abort();
  signal.addEventListener("abort", stop);
  let timer = setTimeout(stop, SILENT_MS);
  try {
    signal.throwIfAborted();
    const answer = await call("GET", withParams(path, params), {}, { headers: { Accept: FRAMES }, signal: own.signal });
    const body = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
    const reader = new FrameReader();
    for (;;) {
      const { done, value } = await body.read();
      if (done) return false;
      clearTimeout(timer);
      timer = setTimeout(stop, SILENT_MS);
      for (const frame of reader.push(value)) {
        if (frame.kind === "log") cursor.set(`${frame.attempt}.${frame.worker}`, frame.end);
        else if (frame.kind === "state") parseCursor(frame.facts.cursor ?? "").forEach((at, place) => cursor.set(place, at));
        if (take(frame) === false || frame.kind === "end") return true;
      }
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    own.abort();
  }
}

/** Waits until the page is seen; calls `hidden` when it was hidden for some time after that. @param {() => void} hidden */
async function seen(hidden) {
  while (document.hidden) await new Promise((wake) => document.addEventListener("visibilitychange", wake, { once: true }));
  let timer = 0;
  const changed = () => {
    clearTimeout(timer);
    if (document.hidden) timer = window.setTimeout(hidden, HIDDEN_MS);
  };
  document.addEventListener("visibilitychange", changed);
  return () => {
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", changed);
  };
}

/**
 * Follows the log until its end, over as many connections as needed. `params` choose the beginning; from the first
 * frame on the cursor does. A hidden page does not follow. `away(true)` is called when the server does not answer, `away(false)` when it does again.
 * Raises ApiError, and AbortError after `signal`.
 * @param {string} path @param {Params} params @param {Cursor} cursor @param {AbortSignal} signal
 * @param {(frame: Frame) => void} take @param {(away: boolean) => void} away
 */
export async function follow(path, params, cursor, signal, take, away) {
  let pause = FIRST_PAUSE_MS;
  let begun = cursor.size > 0;
  const { tail, since, ...kept } = params;
  for (;;) {
    const hidden = new AbortController();
    const done = await seen(() => hidden.abort());
    const either = AbortSignal.any([signal, hidden.signal]);
    const beginning = begun ? { ...kept, cursor: formatCursor(cursor) } : { ...kept, tail, since };
    try {
      const ended = await readFrames(path, { ...beginning, follow: true }, cursor, either, (frame) => {
        if (pause > FIRST_PAUSE_MS || !begun) away(false);
        pause = FIRST_PAUSE_MS;
        begun = true;
        take(frame);
      });
      if (ended) return;
    } catch (error) {
      signal.throwIfAborted();
      if (error instanceof ApiError && error.status < 500 && error.status !== 429) throw error;
    } finally {
      done();
    }
    if (hidden.signal.aborted) continue;
    away(true);
    await new Promise((wake) => setTimeout(wake, pause * (0.5 + Math.random() / 2)));
    signal.throwIfAborted();
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}
