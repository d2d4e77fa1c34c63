"""Why packages could not be installed, from what pip has said. Pure. Standard library only, Python >= 3.8."""

import re
from typing import List, Optional, Sequence

_UNREACHABLE = (
    "Failed to establish a new connection|Name or service not known|Temporary failure in name resolution"
    "|Network is unreachable|Connection refused|ConnectTimeoutError|ReadTimeoutError|ProxyError|SSLError"
)


def why(lines: Sequence[str]) -> str:
    """A sentence that names the package."""
    text = "\n".join(lines)
    for rule in (_no_match, _conflict, _invalid, _not_built):
        found = rule(text, lines)
        if found:
            return found
    errors = [line for line in lines if line.startswith("ERROR:")] or [line for line in lines if line.strip()]
    return errors[-1].replace("ERROR: ", "", 1).strip() if errors else "pip ended without a word"


def _no_match(text: str, lines: Sequence[str]) -> Optional[str]:
    del lines
    found = re.search(r"ERROR: No matching distribution found for (.+)", text)
    if found is None:
        return None
    versions = re.search(r"satisfies the requirement .+ \(from versions: (.+)\)", text)
    if versions and versions[1] != "none":
        return "no version of %s is there; there are: %s" % (found[1], _last_few(versions[1]))
    if re.search(_UNREACHABLE, text):
        return "%s was not found: the package index can't be reached" % found[1]
    return "%s was not found: the package index has no such package for this interpreter" % found[1]


def _conflict(text: str, lines: Sequence[str]) -> Optional[str]:
    del lines
    found = re.search(r"ERROR: Cannot install (.+) because these package versions have conflicting dependencies", text)
    if found is None:
        return None
    reasons = re.search(r"The conflict is caused by:\n((?: {4}.+\n?)+)", text)
    because = "; ".join(line.strip() for line in reasons[1].splitlines()) if reasons else ""
    return "%s can't be installed together%s" % (found[1], ": " + because if because else "")


def _invalid(text: str, lines: Sequence[str]) -> Optional[str]:
    del lines
    found = re.search(r"ERROR: Invalid requirement: (.+)", text)
    return "%s is no requirement as pip understands it" % found[1].split(":")[0].strip() if found else None


def _not_built(text: str, lines: Sequence[str]) -> Optional[str]:
    found = re.search(r"ERROR: Failed to build .*?'([^']+)'|Failed building wheel for (\S+)", text)
    if found is None:
        return None
    said: List[str] = [line.strip() for line in lines if re.match(r"\s*(\w*Error|error): ", line)]
    name = found[1] or found[2]
    return "%s could not be built%s" % (name, ": " + said[-1] if said else "; the log has what its build said")


def _last_few(versions: str) -> str:
    known = versions.split(", ")
    return ", ".join((["..."] if len(known) > 5 else []) + known[-5:])
