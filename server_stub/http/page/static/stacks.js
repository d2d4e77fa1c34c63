// The stacks of the ranks, grouped as `client-lib stacks` groups them.

import { call, job, jobPath } from "./api.js";
import { h, status } from "./dom.js";

/** @typedef {{function: string, file: string, line: number | null}} Frame */
/** @typedef {{id: string, name: string | null, main: boolean, frames: Frame[]}} Thread */
/** @typedef {{pid: number, name: string, state: string, threads: Thread[], problem: string | null}} Process */
/** @typedef {{time: string, groups: string[], problems: string[], ranks: {rank: number, processes: Process[]}[]}} Stacks */

/** @param {HTMLElement} section */
export function start(section) {
  if (!job) return;
  const { owner } = job;
  const message = status();
  const shown = h("div", { class: "stacks" });
  const button = h("button", { type: "button", click: () => void take() }, "Take the stacks of all ranks");

  async function take() {
    button.disabled = true;
    message.say("Asking the ranks …");
    try {
      const answer = await call("GET", jobPath("/stacks"), { owner });
      show(await answer.json());
    } catch (error) {
      message.say(/** @type {Error} */ (error).message);
    } finally {
      button.disabled = false;
    }
  }

  /** @param {Stacks} stacks */
  function show(stacks) {
    message.say(`At ${new Date(stacks.time).toLocaleTimeString()}`);
    const lines = [...(stacks.groups ?? []), ...stacks.problems];
    shown.replaceChildren(
      h("ul", {}, ...lines.map((line) => h("li", {}, line))),
      ...stacks.ranks.map(({ rank, processes }) => {
        const text = h("pre", { tabindex: 0 });
        const details = h("details", {}, h("summary", {}, `rank ${rank}`), text);
        details.addEventListener("toggle", () => (text.textContent = processes.map(described).join("\n\n")), { once: true });
        return details;
      }),
    );
  }

  section.append(button, message.element, shown);
}

/** @param {Process} process */
function described(process) {
  const threads = [...process.threads].sort((a, b) => Number(b.main) - Number(a.main)).map((thread) => {
    const frames = thread.frames.map((frame) => `    ${frame.function} (${frame.file}:${frame.line ?? "?"})`);
    return [`  ${thread.main ? "main thread" : "thread"} ${thread.name ?? thread.id}`, ...frames].join("\n");
  });
  return [`process ${process.pid} (${process.name}): ${process.state}`, ...(process.problem ? [`  ${process.problem}`] : []), ...threads].join("\n");
}
