"""Hydra's launcher `client_lib`: `python train.py --multirun hydra/launcher=client_lib lr=0.1,0.01`
runs each as a job.

The wheel has this file also as hydra_plugins/client_lib_launcher.py: Hydra looks for launchers in
that package alone, and loads it in each program, so that what is slow to import is imported in
`launch`.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import open_dict

_OPTIONS = (
    "instance_type n_workers processes_per_worker type base_image code env_variables secrets "
    "requirements setup outputs volumes gpus priority_class queue_name labels max_retry "
    "stop_timer"
)
"""Arguments of Job that need no `+` on the command line."""
_log = logging.getLogger(__name__)


class ClientLibLauncher(Launcher):
    """Submits each combination of the sweep as a job and waits for all of them."""

    def __init__(self, **options: Any) -> None:
        """`options`: arguments of Job; None: not given."""
        self._options = {name: value for name, value in options.items() if value is not None}

    def setup(
        self, *, hydra_context: Any, task_function: Callable[[Any], Any], config: Any
    ) -> None:
        self._context = hydra_context
        self._function = task_function
        self._config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from client_lib import Executor

        setup_globals()
        hydra = self._config.hydra
        configure_log(hydra.hydra_logging, hydra.verbose)
        Path(str(hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        _log.info("Launching %d jobs with client_lib", len(job_overrides))
        run = _run(self._context, self._function, Singleton.get_state())
        with Executor(**self._options) as executor:
            futures = []
            for number, overrides in enumerate(job_overrides, initial_job_idx):
                config = self._context.config_loader.load_sweep_config(
                    self._config, list(overrides)
                )
                with open_dict(config):
                    config.hydra.job.id = config.hydra.job.num = number
                futures.append(executor.submit(run, config))
                _log.info(
                    "\t#%d : %s : %s",
                    number,
                    futures[-1].job.name,
                    " ".join(filter_overrides(overrides)),
                )
            return [future.result() for future in futures]


def _run(context: Any, function: Callable[[Any], Any], state: Any) -> Callable[[Any], JobReturn]:
    def run(config: Any) -> JobReturn:  # travels by value: a worker may lack this package
        setup_globals()
        Singleton.set_state(state)
        HydraConfig.instance().set_config(config)
        folder = {"job_dir_key": "hydra.sweep.dir", "job_subdir_key": "hydra.sweep.subdir"}
        return run_job(hydra_context=context, task_function=function, config=config, **folder)

    run.__name__ = function.__name__
    return run


_TARGET = "hydra_plugins.client_lib_launcher.ClientLibLauncher"
_NODE = {"_target_": _TARGET, "_convert_": "all", **dict.fromkeys(_OPTIONS.split())}
ConfigStore.instance().store(
    group="hydra/launcher", name="client_lib", node=_NODE, provider="client_lib"
)
