"""A loop that prints a line of JSON each step, with all digits."""

import json
import math
import time

from record import note


def main():
    for step in range(1, 101):
        values = {
            "loss": math.exp(-step / 50) + 1 / 3,
            "lr": 1e-3 / step,
            "grad/norm": math.sin(step),
        }
        print(json.dumps({"step": step, "time": time.time(), **values}), flush=True)
        note(step, **{name: repr(value) for name, value in values.items()})
        time.sleep(0.03)


if __name__ == "__main__":
    main()
