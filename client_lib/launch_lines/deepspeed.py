"""A line of `deepspeed` as fields of a job. Pure.

Its hostfile says machines and slots; the workers of the job are those machines, and need no ssh.
Source: DeepSpeed 0.18, deepspeed/launcher/runner.py, parse_args, fetch_hostfile,
parse_resource_filter; launcher/launch.py.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from client_lib.errors import InvalidRequest, NotSupported
from client_lib.launch_lines import lines
from client_lib.launch_lines.lines import (
    LaunchLine,
    Machine,
    OptionTable,
    dropped,
    split,
    what_runs,
    whole_number,
)
from client_lib.launcher_protocol.plan import RANK_VARIABLES

LAUNCHER = "deepspeed"
_READ = frozenset({"hostfile", "include", "num-nodes", "num-gpus"})
DROPPED = lines.by_name(
    {
        lines.RENDEZVOUS: (
            "master-addr master-port launcher launcher-args ssh-port no-ssh no-ssh-check "
            "force-multi venv-script"
        ),
        lines.ONE_SUBMIT: "node-rank",
        lines.LOGS: "enable-each-rank-log",
        lines.PROGRAM: "save-pid quick-start-check",
        "ranks are not bound to cores": "bind-cores-to-rank bind-core-list",
    }
)
REFUSED: dict[str, str] = {
    "exclude": "name what is used by --include, or by -N and --gpus",
    "elastic-training": "`-t pytorch_elastic` starts elastic jobs",
    "min-elastic-nodes": "`-t pytorch_elastic --elastic-min-workers N` starts elastic jobs",
    "max-elastic-nodes": "`-t pytorch_elastic --elastic-max-workers N` starts elastic jobs",
    "autotuning": "`client-lib submit --each` runs a script with several settings",
    "help": "`client-lib submit --help` lists the options of a job",
}
_FLAGS = frozenset(
    {"module", "no-python", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "save-pid"}
    | {"bind-cores-to-rank", "elastic-training", "help", "quick-start-check"}
)
TABLE = OptionTable(
    LAUNCHER,
    flags=_FLAGS,
    valued=(_READ | DROPPED.keys() | REFUSED.keys()) - _FLAGS,
    short={"H": "hostfile", "i": "include", "e": "exclude", "h": "help"},
)
_ALL = "-1"
"""A number of nodes or GPUs that stands for all."""
_NAMED = 8
"""Most hosts that an error names."""


def read(words: Sequence[str], machine: Machine, python: str | None) -> LaunchLine:
    """`python`: the interpreter that the line names.
    Raises InvalidRequest or NotSupported: see `client_lib.launch_lines.read`."""
    line = split(words, TABLE)
    given = line.given
    for name in given.keys() & REFUSED.keys():
        raise NotSupported(f"{LAUNCHER} --{name} is not supported here", hint=REFUSED[name])
    runs = what_runs(LAUNCHER, given, line.rest, python)
    counted, given_by = _counted(given, machine)
    defaults: dict[str, Any] = {}
    if not runs["script"].endswith(".py"):  # a `python -m` line of its own would have none
        counted["env_variables"] = {RANK_VARIABLES: "1"}
    elif "no-local-rank" not in given:  # each process gets --local_rank
        defaults["pytorch_use_env"] = False
    notices = dropped(given, DROPPED)
    if "gpus" not in counted and ":" in given.get("include", ""):
        notices.append(
            "of --include the numbers of GPUs count: which ones a worker gets is not said"
        )
    if "hostfile" in given and machine.text(given["hostfile"]) is None:
        notices.append(f"there is no hostfile {given['hostfile']}: -N says how many workers")
    return LaunchLine(
        LAUNCHER,
        {**runs, **counted},
        defaults,
        {"env_variables": f"the {LAUNCHER} line", **given_by},
        notices,
        python,
    )


def _counted(given: Mapping[str, str], machine: Machine) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields that hold numbers, and the words that say each."""
    fields: dict[str, Any] = {}
    given_by: dict[str, str] = {}
    text = machine.text(given["hostfile"]) if "hostfile" in given else None
    slots = _slots(text) if text is not None else {}
    by = f"--hostfile {given.get('hostfile')}"
    chosen = _included(given.get("include", ""))
    if chosen:
        by = f"--include {given['include']}"
        unknown = next((host for host in chosen if slots and host not in slots), None)
        if unknown is not None:
            raise InvalidRequest(
                f"{by}: the hostfile has no host {unknown}",
                hint=f"its hosts are {', '.join(list(slots)[:_NAMED])}",
            )
        slots = {host: len(gpus) or slots.get(host, 0) for host, gpus in chosen.items()}
    if given.get("num-nodes", _ALL) != _ALL:
        nodes = whole_number("--num_nodes", given["num-nodes"], 1)
        if slots and nodes > len(slots):
            raise InvalidRequest(
                f"--num_nodes {nodes} with {by}, which has {len(slots)} hosts",
                hint=f"give --num_nodes {len(slots)}, or leave the hosts out",
            )
        slots = dict(list(slots.items())[:nodes])
        fields["n_workers"] = nodes
        given_by["n_workers"] = f"--num_nodes {nodes}"
    elif slots:
        fields["n_workers"] = len(slots)
        given_by["n_workers"] = by
    if given.get("num-gpus", _ALL) != _ALL:
        fields["processes_per_worker"] = whole_number("--num_gpus", given["num-gpus"], 1)
        given_by["processes_per_worker"] = f"--num_gpus {given['num-gpus']}"
    elif any(slots.values()):
        if len(set(slots.values())) > 1:
            raise InvalidRequest(
                f"{by} gives the machines different numbers of processes, and workers have the "
                "same number",
                hint="give --num_gpus",
            )
        fields["processes_per_worker"] = next(iter(slots.values()))
        given_by["processes_per_worker"] = by
    if len(chosen) == 1 and any(chosen.values()):
        fields["gpus"] = next(iter(chosen.values()))
        given_by["gpus"] = by
    return fields, given_by


def _slots(text: str) -> dict[str, int]:
    """Host -> processes, of lines such as `worker-1 slots=4`. Raises InvalidRequest for others."""
    found: dict[str, int] = {}
    for row in text.splitlines():
        words = row.partition("#")[0].split()
        if not words:
            continue
        name, _, number = words[-1].partition("=")
        if len(words) != 2 or name != "slots":
            raise InvalidRequest(
                f"{LAUNCHER}: the hostfile has the line {row!r}", hint="write `HOST slots=N`"
            )
        found[words[0]] = whole_number(f"slots of {words[0]}", number, 1)
    return found


def _included(text: str) -> dict[str, list[int]]:
    """Host -> its GPUs, of `worker-0@worker-1:0,2`; [] stands for all."""
    found: dict[str, list[int]] = {}
    for each in filter(None, text.split("@")):
        host, _, gpus = each.partition(":")
        indices = (whole_number("--include", one, 0) for one in filter(None, gpus.split(",")))
        found[host] = sorted(set(indices))
    return found
