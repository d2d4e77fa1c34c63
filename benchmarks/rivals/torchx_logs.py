"""The rival of the log benchmarks: TorchX's local scheduler. Run by them, with the interpreter that
has torchx.

torchx_logs.py catchup LINES    prints lines/s
torchx_logs.py latency LINES    prints the delays in ms as JSON
"""

from __future__ import annotations

import json
import sys
import time

from torchx.runner import get_runner
from torchx.specs import AppDef, Role
from torchx.specs.api import is_terminal

TEXT = "epoch 3 step %8d loss 0.2512345 lr 3.0e-05 tokens/s 123456 "
PRINT = f"for n in range({{lines}}): print({TEXT!r} % n)"
TICK = (
    "import time\nfor _ in range({lines}): print(time.monotonic_ns(), flush=True); time.sleep(0.05)"
)


def start(runner, code: str) -> str:
    role = Role(name="rank", image="", entrypoint=sys.executable, args=["-c", code], num_replicas=1)
    return runner.run(AppDef(name="logs", roles=[role]), scheduler="local_cwd")


def main() -> None:
    what, lines = sys.argv[1], int(sys.argv[2])
    with get_runner() as runner:
        handle = start(runner, (PRINT if what == "catchup" else TICK).format(lines=lines))
        if what == "catchup":
            while not is_terminal(runner.status(handle).state):
                time.sleep(0.1)
            began = time.perf_counter()
            count = sum(1 for _ in runner.log_lines(handle, "rank", 0, should_tail=True))
            assert count >= lines, count
            print(count / (time.perf_counter() - began))
        else:
            delays = []
            for line in runner.log_lines(handle, "rank", 0, should_tail=True):
                now = time.monotonic_ns()
                number = line.split()[-1]
                if number.isdigit():
                    delays.append((now - int(number)) / 1e6)
            assert len(delays) >= lines, len(delays)
            print(json.dumps(delays))


if __name__ == "__main__":
    main()
