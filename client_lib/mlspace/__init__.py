"""The module-level names of the ML Space platform's `client_lib`: a thin layer on the SDK for scripts written for it.

`client_lib.__getattr__` loads each module here when a name of it is first used; nothing else imports this room (an
import contract), so that the SDK stays whole without it. Words that the server shares: `client_lib.spec.mlspace`.
"""
