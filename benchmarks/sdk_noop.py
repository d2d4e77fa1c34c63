"""The twin of rivals/torchx_noop.py for our SDK; noop_job.py runs it."""

import sys
import time

from client_lib import Job

for _line in sys.stdin:
    began = time.perf_counter()
    job = Job(script="echo hello", type="binary", instance_type="cpu.1C.1G")
    job.submit()
    job.wait()
    print(f"{time.perf_counter() - began:.6f}", flush=True)
