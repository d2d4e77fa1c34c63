"""`pytorch_elastic`: each worker runs one agent of torchrun, which starts, numbers and restarts the ranks. Pure.

The agents meet at worker 0, which holds the rendezvous. Standard library only, Python >= 3.8.
"""

from typing import List

from client_lib.worker.plan import WorkerPlan

TYPE = "pytorch_elastic"
CONF = "CLIENT_LIB_RDZV_CONF"
"""Variable: settings of torchrun's --rdzv-conf, which win over these."""
_RENDEZVOUS = "join_timeout=1200,last_call_timeout=90,read_timeout=90"  # seconds, as on the ML Space platform
_LOOPBACK = ("127.", "localhost", "::1")


def agent(plan: WorkerPlan) -> List[str]:
    """What stands between the interpreter and the script: torchrun with its options."""
    least = plan.n_workers if plan.elastic_min_workers is None else plan.elastic_min_workers
    is_host = "true" if plan.worker == 0 else "false"
    options = [
        "--nnodes=%d:%d" % (least, plan.n_workers),
        "--nproc-per-node=%d" % plan.processes_per_worker,
        "--max-restarts=%d" % plan.elastic_max_restarts,
        "--rdzv-id=%s-%d" % (plan.job, plan.attempt),
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=%s:%d" % (plan.master_addr, plan.master_port),
        "--rdzv-conf=" + ",".join(filter(None, ["is_host=" + is_host, _RENDEZVOUS, plan.environment.get(CONF)])),
    ]
    if plan.master_addr.startswith(_LOOPBACK):  # else an agent tells the others this machine's name, and DNS may fail
        options.append("--local-addr=%s" % plan.master_addr)
    return ["-m", "torch.distributed.run"] + options
