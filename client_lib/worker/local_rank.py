"""Which spelling of `--local_rank` a script declares, found without running it.

Standard library only, Python >= 3.8.
"""

from typing import Optional

_SPELLINGS = ("--local_rank", "--local-rank")


def declared_option(source: bytes) -> Optional[str]:
    """The first of `--local_rank` and `--local-rank` that is a string literal in a call of `add_argument` or
    `click.option`; None where there is none, or where the source is no Python.
    """
    if not any(spelling.encode() in source for spelling in _SPELLINGS):
        return None
    import ast  # here: few scripts get this far

    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):  # the script's own run will tell
        return None
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _declares(call.func):
            for argument in call.args:
                if isinstance(argument, ast.Constant) and argument.value in _SPELLINGS:
                    return str(argument.value)
    return None


def _declares(function: object) -> bool:
    name = getattr(function, "attr", None) or getattr(function, "id", None)
    return name in ("add_argument", "option")
