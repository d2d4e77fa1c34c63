"""The wire: the only definition of every model, path and state that client and server exchange.

`states`, `wording`, `paths`, `command_line` and `state_dir` need the standard library only; the
models need pydantic, so nothing is re-exported here: import from the module that defines it.
"""
