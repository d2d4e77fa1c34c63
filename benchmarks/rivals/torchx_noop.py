"""TorchX by its Python API, run by the interpreter of .venv-bench: seconds from submit to the final
state seen.

    .venv-bench/bin/python benchmarks/rivals/torchx_noop.py LOG_DIR

Prints one number per line read from stdin, so that the caller can interleave it with others. The
wait polls every 10 ms; TorchX's own default of 10 s, and the 1 s of its command line, would be a
straw man.
"""

import sys
import time

from torchx.runner import get_runner

with get_runner() as runner:
    for _line in sys.stdin:
        began = time.perf_counter()
        app = runner.run_component(
            "utils.echo", ["--msg", "hello"], "local_cwd", {"log_dir": sys.argv[1]}
        )
        status = runner.wait(app, wait_interval=0.01)
        took = time.perf_counter() - began
        if status is None or status.state.name != "SUCCEEDED":
            sys.exit(f"TorchX ended {status}")
        print(f"{took:.6f}", flush=True)
