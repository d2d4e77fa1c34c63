"""`pytorch_elastic`: each worker runs one agent of torchrun, which starts, numbers and restarts the ranks. Pure.

The agents meet at worker 0, which holds the rendezvous. Standard library only, Python >= 3.8.
"""

import json
import re
from typing import List, Optional, Sequence

from client_lib.worker.plan import WorkerPlan

TYPE = "pytorch_elastic"
CONF = "CLIENT_LIB_RDZV_CONF"
"""Variable: settings of torchrun's --rdzv-conf, which win over these."""
_RENDEZVOUS = "join_timeout=1200,last_call_timeout=90,read_timeout=90"  # seconds, as on the ML Space platform
_NO_RANK = 9  # a local rank that isn't there: torch 1.13 on Python 3.11 fails where the streams of none are redirected
_LOOPBACK = ("127.", "localhost", "::1")


def failed_rank(error_file: Optional[str], said: Sequence[str]) -> Optional[int]:
    """The rank that failed first below an agent that failed; None: it doesn't say. `error_file`: what stands in the
    agent's, which is that rank's own (rank_runner.py); `said`: the agent's last lines, where torch names it, too."""
    try:
        return int(json.loads(error_file or "")["message"]["extraInfo"]["rank"])
    except (ValueError, KeyError, TypeError):
        pass
    cause = next((n for n, line in enumerate(said) if line.startswith("Root Cause")), len(said))
    ranks = (re.match(r"\s+rank\s*: (\d+) \(local_rank", line) for line in said[cause:])
    return next((int(found.group(1)) for found in ranks if found), None)


def agent(plan: WorkerPlan) -> List[str]:
    """What stands between the interpreter and the script: torchrun with its options."""
    least = plan.n_workers if plan.elastic_min_workers is None else plan.elastic_min_workers
    is_host = "true" if plan.worker == 0 else "false"
    options = [  # torch 1.13 knows no option with a hyphen
        "--nnodes=%d:%d" % (least, plan.n_workers),
        "--nproc_per_node=%d" % plan.processes_per_worker,
        "--max_restarts=%d" % plan.elastic_max_restarts,
        "--rdzv_id=%s-%d" % (plan.job, plan.attempt),
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=%s:%d" % (plan.master_addr, plan.master_port),
        "--rdzv_conf=" + ",".join(filter(None, ["is_host=" + is_host, _RENDEZVOUS, plan.environment.get(CONF)])),
    ]
    if plan.processes_per_worker <= _NO_RANK:
        options += ["--redirects=%d:3" % _NO_RANK, "--tee=%d:3" % _NO_RANK]
    if plan.master_addr.startswith(_LOOPBACK):  # else an agent tells the others this machine's name, and DNS may fail
        options.append("--local_addr=%s" % plan.master_addr)
    return ["-m", "torch.distributed.run"] + options
