"""Functions as jobs: what is called (`call`), how it travels (`payload`) and what comes back
(`results`)."""
