"""A manifest as text: YAML documents to read (or to hand to kubectl), or one JSON object."""

from __future__ import annotations

import json

from client_lib.spec.wire import Manifest


def text(manifest: Manifest, *, as_json: bool) -> str:
    if as_json:
        return json.dumps(manifest.model_dump(mode="json"), indent=2, ensure_ascii=False)
    import yaml

    objects = manifest.model_dump(mode="json")["objects"]
    return str(yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True, width=1000)).rstrip()
