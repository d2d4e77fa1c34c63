// Calls of the server's REST API with the cookie of the login; shared by all scripts of the pages.

const root = document.documentElement.dataset;
const base = new URL(root.base || "./", location.href);

/** An error that the server answered. */
export class ApiError extends Error {
  /** @param {number} status @param {{code?: string, message?: string, hint?: string}} body */
  constructor(status, body) {
    super(body.message || `the server answered ${status}`);
    this.status = status;
    this.code = body.code || "";
    this.hint = body.hint || "";
  }
}

/**
 * The URL of a path of this server, also behind a prefix.
 * @param {string} path without a leading slash
 * @param {Record<string, string | number | undefined>} [params] undefined: left out
 */
export function url(path, params = {}) {
  const found = new URL(path, base);
  for (const [name, value] of Object.entries(params)) if (value !== undefined) found.searchParams.set(name, String(value));
  return found;
}

/**
 * Ask the server; throws ApiError for an answer that is not ok, and what fetch throws where there is none.
 * @param {string} method
 * @param {string} path
 * @param {Record<string, string | number | undefined>} [params]
 * @param {RequestInit} [options]
 */
export async function call(method, path, params = {}, options = {}) {
  const headers = new Headers(options.headers);
  if (method !== "GET") headers.set("X-CSRF-Token", root.csrf || "");
  const response = await fetch(url(path, params), { cache: "no-store", ...options, method, headers });
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => ({})));
  return response;
}

/** The job of this page; null on other pages. @type {DOMStringMap | null} */
export const job = document.getElementById("job")?.dataset ?? null;

/** Path of the job of this page in the API. @param {string} [rest] */
export function jobPath(rest = "") {
  return `api/v1/jobs/${encodeURIComponent(job?.name ?? "")}${rest}`;
}
