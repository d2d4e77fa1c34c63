"""The wire: the only definition of every model, path and state that client and server exchange.

`states`, `paths`, `command_line` and `log_stream` need the standard library only; `job`, `wire` and `workers` need
pydantic, so nothing is re-exported here: import from the module that defines it.
"""
