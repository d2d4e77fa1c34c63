"""Turns a `Job` into the request that is sent: code, caller, requirements, arguments."""
