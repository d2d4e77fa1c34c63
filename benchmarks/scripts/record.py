"""The record of a script whose framework keeps none: the texts that it has just printed."""

import json
import time


def note(step, **values):
    with open("record.jsonl", "a") as file:
        file.write(json.dumps({"at": time.time(), "step": step, "values": values}) + "\n")
