"""`notebook_launcher` with accelerate's signature: code that was written for it changes its import
line only. Public.

    from client_lib.notebook import notebook_launcher

    notebook_launcher(train, args=(model,), num_processes=2)

The processes are a job's: one worker with `num_processes` processes, so that code which takes the
global rank for the index of a device is right. They are no forks of the notebook, which may have
used its GPU before.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from client_lib.errors import NotSupported
from client_lib.job import Job, submitted

_PRECISIONS = ("no", "fp8", "fp16", "bf16")
_PORT = "29500"  # accelerate's default, which asks for nothing
# names, or how they begin
_NO_EFFECT = ("master_addr", "rdzv_", "monitor_interval", "log_line_prefix_template")


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str | int = _PORT,
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
) -> Any:
    """Run the function in `num_processes` processes, print what they print, and give rank 0's value
    (accelerate: None).

    `num_processes` None: one per free GPU, else one. Parameters named rank, local_rank, world_size
    and size that `args` leave open are filled. The other arguments are accelerate's; those that say
    how its processes meet have no effect.

    Raises:
        what the function raised in the first failing rank; see `Job.result`.
        ValueError: a precision that accelerate doesn't know.
        NotSupported: more than one node: `Job(script=function, n_workers=...)` has them.
    """
    given = dict(locals())
    precision = str(mixed_precision).lower()
    if precision not in _PRECISIONS:
        raise ValueError(
            f"Unknown mixed_precision mode: {precision}. Choose between {list(_PRECISIONS)}."
        )
    if num_nodes != 1 or node_rank != 0:
        raise NotSupported(
            f"notebook_launcher(num_nodes={num_nodes}) starts one node of several by hand",
            hint="Job(script=function, n_workers=...) starts all of them",
        )
    # as accelerate sets them
    variables = {"ACCELERATE_MIXED_PRECISION": precision, "FORK_LAUNCHED": "1"}
    if str(use_port) not in (_PORT, "0"):
        variables["MASTER_PORT"] = str(use_port)
    job = Job(
        script=function,
        args=args,
        processes_per_worker=num_processes,
        env_variables=variables,
        max_retry=max_restarts or None,
    )
    for name, parameter in inspect.signature(notebook_launcher).parameters.items():
        if name.startswith(_NO_EFFECT) and given[name] not in (parameter.default, {}):
            warnings.warn(
                f"{name}={given[name]!r} has no effect: the processes meet by themselves",
                stacklevel=2,
            )
    submitted(job).logs()
    return job.result()
