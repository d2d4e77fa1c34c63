"""The module-level names of the ML Space platform's `client_lib`: a thin layer on the SDK for
scripts written for it.

Terms that the server shares are in `client_lib.spec.mlspace`, arguments of earlier years in
`client_lib.submit`.
"""
