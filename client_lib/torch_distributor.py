"""`TorchDistributor` with pyspark's signature: code that was written for it changes its import line
only. Public.

from client_lib.torch_distributor import TorchDistributor

TorchDistributor(num_processes=2, local_mode=True, use_gpu=False).run(train, 1e-3)
"""

import os
import subprocess
import warnings
from collections.abc import Callable
from typing import Any

from client_lib.job import Job, submitted
from client_lib.submit.caller import gpu_bound


class TorchDistributor:
    """Runs a function, or a .py file, in several processes of torch.distributed. See
    `pyspark.ml.torch.distributor`.
    """

    def __init__(
        self,
        num_processes: int | None = None,
        local_mode: bool = True,
        use_gpu: bool = True,
        _ssl_conf: str = "pytorch.spark.distributor.ignoreSsl",
        *,
        num_workers: int | None = None,
        **options: Any,
    ) -> None:
        """Stores and checks only.

        `num_processes`: of the whole job (1); `num_workers`, as documents write it too, is the
        same. `local_mode` True: one worker of so many processes; False: so many workers of one
        process, on the configured server. `use_gpu`: one GPU per process; without a GPU the
        processes run on the CPU, with a warning. `options`: of `Job`.

        Raises ValueError: there is no such number of processes, or two different numbers are
        given.
        """
        if num_workers is not None and num_processes not in (None, num_workers):
            raise ValueError(
                f"num_processes={num_processes} and num_workers={num_workers} are two names of "
                "one number"
            )
        count = next((given for given in (num_processes, num_workers) if given is not None), 1)
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"num_processes has to be a positive integer, not {count!r}")
        self.num_processes = count
        self.local_mode = local_mode
        self.use_gpu = use_gpu
        self._options = options

    def run(
        self, train_object: Callable[..., Any] | str | os.PathLike[str], *args: Any, **kwargs: Any
    ) -> Any:
        """Run it and wait: rank 0's value of a function, None for a file, whose `args` are its
        command line.

        Raises:
            what the function raised, from a JobFailed with the failing rank's traceback; see
            `Job.result`.
            JobFailed: of a file, with its last lines.
            ValueError: keyword arguments for a file.
        """
        if callable(train_object):
            job = self._job(script=train_object, args=args, kwargs=kwargs)
            submitted(job).logs()
            return job.result()
        if kwargs:
            raise ValueError("Running pytorch file does not support key-word type arguments.")
        job = self._job(script=train_object, args=[str(arg) for arg in args])
        submitted(job).logs()
        job.wait()
        return None

    def _job(self, **what: Any) -> Job:
        processes = self.num_processes
        if self.local_mode and self.use_gpu:
            gpus = _gpus_here()
            if gpus == 0:
                warnings.warn(
                    "use_gpu=True, but this machine has no GPU: the processes run on the CPU",
                    stacklevel=3,
                )
            elif processes > gpus:
                warnings.warn(  # pyspark's words
                    "'num_processes' cannot be set to a value greater than the number of "
                    f"available GPUs on the driver, which is {gpus}. 'num_processes' was reset to "
                    "be equal to the number of available GPUs.",
                    RuntimeWarning,
                    stacklevel=3,
                )
                processes = gpus
        shape: dict[str, Any] = {"processes_per_worker": processes}
        if not self.local_mode:
            shape = {"n_workers": processes, "processes_per_worker": 1}
        if not self.use_gpu:
            shape["type"] = "nogpu"
        return Job(**{**shape, **self._options, **what})


def _gpus_here() -> int:
    """GPUs of this machine that this process may use."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    there = len(listed.splitlines())
    bound = gpu_bound(os.environ)
    return there if bound is None else min(there, len(bound))
