import ast
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import client_lib
from client_lib import errors, job
from client_lib.spec.job import JobSpec
from client_lib.submit import arguments

HEAVY = (
    "server_stub",
    "requests",
    "pydantic",
    "torch",
    "fastapi",
    "tenacity",
    "pathspec",
    "typer",
    "rich",
)


def run_python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_client_lib_loads_nothing_heavy() -> None:
    loaded = run_python(
        "import client_lib, sys; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    ).split()
    assert not set(HEAVY) & set(loaded)


def test_importing_client_lib_loads_no_module_of_its_own() -> None:
    assert (
        run_python(
            "import client_lib, sys; print(*[n for n in sys.modules if "
            "n.startswith('client_lib.')])"
        ).split()
        == []
    )


def test_every_public_name_is_there_and_dir_shows_it() -> None:
    assert len(set(client_lib.__all__)) == len(client_lib.__all__)
    for name in client_lib.__all__:
        assert getattr(client_lib, name) is not None
        assert name in dir(client_lib)


def test_a_star_import_gives_exactly_what_all_lists() -> None:
    shown = run_python(
        "from client_lib import *; import client_lib; print(sorted(client_lib.__all__) == "
        "sorted(n for n in globals() if not n.startswith('__') and n != 'client_lib' or n == "
        "'__version__'))"
    )
    assert shown.strip() == "True"


def test_a_client_needs_no_module_that_windows_lacks() -> None:
    """The standard library, and the packages of others, are imported before the
    platform has the other name.
    """
    others = (
        "asyncio, cloudpickle, pathspec, pydantic, requests, rich.console, sysconfig, tenacity, "
        "typer, yaml, zoneinfo"
    )
    ours = "client, cli.app, futures, job, transport.logins"
    run_python(
        f"import sys, {others}; pydantic.TypeAdapter; pydantic.BaseModel; "
        "sysconfig.get_config_vars()\nsys.platform = 'win32'\nfor name in ('fcntl', 'pwd', "
        "'resource', 'termios'): sys.modules[name] = None\nimport "
        f"{', '.join('client_lib.' + each for each in ours.split(', '))}"
    )


def test_every_error_class_is_public() -> None:
    assert {kind.__name__ for kind in errors.BY_CODE.values()} <= set(client_lib.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="jobz"):
        _ = client_lib.jobz


def test_the_keywords_of_job_are_the_fields_of_the_spec_those_of_earlier_years_and_client() -> None:
    parameters = inspect.signature(client_lib.Job.__init__).parameters
    assert (
        set(parameters) - {"self", "client", "kwargs"}
        == set(JobSpec.model_fields) | arguments.TODAY.keys()
    )


def test_the_source_of_job_describes_every_field_of_the_spec() -> None:
    """Editors and GitHub read the source, and run nothing."""
    tree = ast.parse(Path(job.__file__).read_text())
    (kind,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Job"]
    documented = ast.get_docstring(kind) or ""
    assert documented == inspect.getdoc(client_lib.Job)
    assert [name for name in JobSpec.model_fields if f"\n    {name}: " not in documented] == []
    assert (
        "retry_on: Failures after which max_retry, which must be given too, makes a new attempt: "
    ) in " ".join(documented.split())


def test_the_platform_s_positional_order() -> None:
    positional = [
        name
        for name, parameter in inspect.signature(client_lib.Job.__init__).parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    assert positional == ["self", "base_image", "script", "instance_type", "n_workers", "type"]


def test_defaults_of_job_are_those_of_the_spec() -> None:
    parameters = inspect.signature(client_lib.Job.__init__).parameters
    for name, field in JobSpec.model_fields.items():
        default = parameters[name].default
        if default is not None:
            assert default == field.default, name


def test_checkers_and_the_interpreter_see_the_same_public_names_in_the_same_modules() -> None:
    tree = ast.parse(inspect.getsource(client_lib))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {
        one.asname: node.module for node in imports for one in node.names
    } == client_lib._MODULE_OF


def test_no_module_at_the_top_takes_the_name_of_a_public_function_or_value() -> None:
    """Importing a module binds its name in the package: `client_lib/logs` would
    replace the function `logs()`.
    """
    modules = {module.name for module in pkgutil.iter_modules(client_lib.__path__)}
    functions = {
        name for name in client_lib.__all__ if inspect.isfunction(getattr(client_lib, name))
    }
    assert not modules & (functions | {"config", "environment"})
