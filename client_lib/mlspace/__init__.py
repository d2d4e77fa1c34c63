"""The module-level names of the ML Space platform's `client_lib`: a thin layer on the SDK for scripts written for it.

`client_lib.__getattr__` loads each module when one of its names is first used. The SDK does not depend on this package.
Terms that the server shares are in `client_lib.spec.mlspace`, arguments of earlier years in `client_lib.submit`.
"""
