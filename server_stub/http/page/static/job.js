// The live parts of a job's page.

import * as curves from "./curves.js";
import * as logs from "./logs.js";
import * as stacks from "./stacks.js";

for (const [id, part] of /** @type {const} */ ([["logs", logs], ["curves", curves], ["usage", curves], ["stacks", stacks]])) {
  const section = document.getElementById(id);
  if (section) part.start(section);
}
