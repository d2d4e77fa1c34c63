# Each target sets up what it needs, virtual environment included, and says what it does. `make` lists them.
PYTHON ?= python3
VENV := .venv
BENCH_VENV := .venv-bench
READY := $(VENV)/.ready
BENCH_READY := $(BENCH_VENV)/.ready
FUNCTIONS_VENV := .venv-bench-functions
FUNCTIONS_READY := $(FUNCTIONS_VENV)/.ready
SCRIPTS_VENV := .venv-bench-scripts
SCRIPTS_READY := $(SCRIPTS_VENV)/.ready
RELEASE_VENV := .venv-release
RELEASE_READY := $(RELEASE_VENV)/.ready
RUN := $(VENV)/bin
JAVASCRIPT := requirements/javascript

# The tests wait for more than half of their time: twice as many workers as cores. With bytecode, also where the machine
# writes none by default: each worker would compile all tests.
JOBS ?= 4
ONE_BY_ONE = PYTHONDONTWRITEBYTECODE= $(RUN)/python -m pytest
PARALLEL = $(ONE_BY_ONE) -n $(JOBS) --dist loadgroup
# The tests on clusters wait most of their time, too. Each worker has clusters of its own.
CLUSTERS ?= 3

FREE_GPUS = $(shell nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits 2>/dev/null | awk '$$1 < 500' | wc -l)
DEMO_TYPE = $(if $(filter-out 0 1,$(FREE_GPUS)),gpu.1gpu,cpu.1C.2G)

.DEFAULT_GOAL := help
.PHONY: help venv demo test test-all test-long test-cluster cluster cluster-down kind kind-down check format bench bench-cluster docs screenshots release lock clean check-javascript check-workflows

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */\1\t/' | expand -t 12

venv: $(READY)  ## the virtual environment .venv, from the locked packages of requirements/dev.txt

$(READY): requirements/dev.txt requirements/bootstrap.txt requirements/install.py pyproject.toml
	@echo "== $(VENV): installing the locked packages (PyTorch among them: minutes the first time, seconds from a cache)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "Python 3.10 or newer is needed; $(PYTHON) is not. Try: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) requirements/install.py $(VENV) requirements/dev.txt --project
	@touch $@

$(BENCH_READY): $(READY) requirements/bench.txt
	@echo "== $(BENCH_VENV): installing the rivals; PyTorch is seen in $(VENV)"
	@$(PYTHON) requirements/install.py $(BENCH_VENV) requirements/bench.txt --behind $(VENV)
	@touch $@

demo: $(READY)  ## train a real model on two workers of this machine, followed live
	@echo "== client-lib submit -f -N 2 -i $(DEMO_TYPE) examples/digits_ddp.py"
	@. $(RUN)/activate && client-lib submit -f -N 2 -i $(DEMO_TYPE) examples/digits_ddp.py
	@echo "== next: . $(RUN)/activate; client-lib list; client-lib logs NAME --rank 0; make test"

test: $(READY)  ## the tests: a sample of those that start processes, and a quarter of the examples (make test PYTEST="-k logs" JOBS=0)
	@echo "== pytest"
	@FEWER_EXAMPLES=4 $(PARALLEL) -m "(smoke or not process) and not long and not cluster and not gpu" $(PYTEST)

test-all: $(READY)  ## every test but those of clusters, few rounds of the long ones
	@echo "== pytest, the tests of processes among them"
	@$(PARALLEL) $(PYTEST)

test-long: $(READY)  ## the same with all rounds: the server killed 50 times, and so on
	@echo "== pytest, all rounds"
	@$(PARALLEL) -m "not cluster and not gpu" $(PYTEST)

test-cluster: $(READY)  ## the tests on a real Kubernetes on this machine (root; minutes to build it the first time)
	@echo "== build of what the clusters run"
	@$(RUN)/python -m tests.cluster build --image python --image torch || [ $$? = 69 ]
	@echo "== pytest, with real clusters"
	@$(ONE_BY_ONE) -n $(CLUSTERS) --dist loadgroup -m "cluster and not long" -rs $(PYTEST)

cluster: $(READY)  ## start a real Kubernetes on this machine, without Docker (root; make cluster LAYERS="api kwok")
	@$(RUN)/python -m tests.cluster up $(LAYERS)

cluster-down: $(READY)  ## remove it without a trace
	@$(RUN)/python -m tests.cluster down

kind:  ## the server on a kind cluster, and the demo job there: 2 CPUs, 4 GiB (needs docker, kind, kubectl; KIND_PORT=30081)
	@$(PYTHON) k8s/kind.py check $(addprefix --port=,$(KIND_PORT))
	@$(MAKE) --no-print-directory venv
	@$(RUN)/python k8s/kind.py up demo $(addprefix --port=,$(KIND_PORT))

kind-down:  ## remove that cluster
	@$(PYTHON) k8s/kind.py down

check: $(READY)  ## format, lint, types, layers of the packages, the worker's oldest Python, changelog, workflows, the page's scripts
	@echo "== ruff format"
	@$(RUN)/ruff format --check .
	@echo "== ruff check"
	@$(RUN)/ruff check .
	@echo "== mypy --strict (both packages, the tests, and the public API as a user writes it)"
	@$(RUN)/mypy
	@echo "== lint-imports (the layers of the packages)"
	@$(RUN)/lint-imports --no-logo
	@echo "== vermin (what runs in a worker runs on Python 3.8)"
	@$(RUN)/vermin --quiet --no-tips --violations --target=3.8- client_lib/worker client_lib/launcher_protocol client_lib/checkpoints client_lib/durable.py client_lib/drill/probe.py client_lib/drill/tensors.py
	@echo "== changelog.d (one file per change)"
	@$(RUN)/python -m release.changelog
	@echo "== actionlint (the workflows in .github)"
	@if command -v go >/dev/null; then $(MAKE) --no-print-directory check-workflows; \
	  else echo "go is missing: the workflows were not checked"; fi
	@echo "== tsc (types of the page's scripts)"
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory check-javascript; \
	  else echo "npm is missing: the JavaScript was not checked"; fi

# Without the programs that actionlint calls where it finds them: the same findings on each machine.
check-workflows:
	@go -C requirements/actionlint tool actionlint -shellcheck= -pyflakes= $(CURDIR)/.github/workflows/*.yml

$(JAVASCRIPT)/node_modules: $(JAVASCRIPT)/package-lock.json
	@npm ci --prefix $(JAVASCRIPT) --ignore-scripts --no-audit --no-fund --silent
	@touch $@

check-javascript: $(JAVASCRIPT)/node_modules
	@$(JAVASCRIPT)/node_modules/.bin/tsc -p $(JAVASCRIPT)

format: $(READY)  ## rewrite the sources as `make check` wants them
	@$(RUN)/ruff format .
	@$(RUN)/ruff check --fix .

$(FUNCTIONS_READY): $(READY) requirements/bench-functions.txt
	@echo "== $(FUNCTIONS_VENV): installing the rivals of function jobs (Spark among them: half a gigabyte)"
	@$(PYTHON) requirements/install.py $(FUNCTIONS_VENV) requirements/bench-functions.txt --behind $(VENV)
	@touch $@

$(SCRIPTS_READY): requirements/bench-scripts.txt requirements/bootstrap.txt requirements/install.py
	@echo "== $(SCRIPTS_VENV): installing the frameworks whose curves are compared with their records"
	@$(PYTHON) requirements/install.py $(SCRIPTS_VENV) requirements/bench-scripts.txt
	@touch $@

bench: $(READY) $(BENCH_READY) $(FUNCTIONS_READY) $(SCRIPTS_READY)  ## every benchmark, with its rivals, in quiet minutes; figures go to benchmarks/RESULTS.md by hand
	@for file in $$(grep -l '__main__' benchmarks/*.py | grep -v /kube_); do echo "== $$file"; $(RUN)/python $$file || exit 1; done

bench-cluster: $(READY)  ## the benchmarks on a real Kubernetes on this machine, with both kinds of jobs (root; minutes to build it the first time)
	@for kind in pytorchjob trainjob; do for command in kube_start.py kube_logs.py kube_queue.py kube_many.py "kube_many.py --hold"; do \
	  echo "== benchmarks/$$command --kind $$kind"; $(RUN)/python benchmarks/$$command --kind $$kind || exit 1; done; done

docs: $(READY)  ## write what docs/ repeats of the code, and build the site in build/docs
	@echo "== docs/openapi*.json, docs/*.schema.json"
	@$(RUN)/python docs/schemas.py docs
	@echo "== docs/cli.md"
	@$(RUN)/python docs/cli_reference.py > docs/cli.md.new && mv docs/cli.md.new docs/cli.md
	@echo "== tables of docs/*.md"
	@$(RUN)/python docs/tables.py
	@echo "== docs/api.txt"
	@$(RUN)/python docs/surface.py > docs/api.txt.new && mv docs/api.txt.new docs/api.txt
	@echo "== build/docs (warnings are errors)"
	@$(RUN)/python -m sphinx -q -W --keep-going docs build/docs

screenshots: $(READY)  ## the pictures of the pages in docs/images, taken by their test
	@SCREENSHOTS=$(CURDIR)/docs/images $(ONE_BY_ONE) -n 0 tests/page/test_screenshots.py

$(RELEASE_READY): requirements/release.txt requirements/bootstrap.txt requirements/install.py
	@echo "== $(RELEASE_VENV): installing what writes the bill of materials of a release"
	@$(PYTHON) requirements/install.py $(RELEASE_VENV) requirements/release.txt
	@touch $@

release: $(READY) $(RELEASE_READY)  ## everything of a release but the upload: make release VERSION=0.2.0
	@$(RUN)/python -m release "$(VERSION)" --materials-tool $(CURDIR)/$(RELEASE_VENV)/bin/cyclonedx-py

lock: $(READY)  ## resolve the lock files anew (upgrades everything that pyproject.toml allows)
	@for name in bootstrap dev server demo bench bench-functions bench-scripts release kubernetes-35 mls-1.3 mls-0.10; do echo "== requirements/$$name.txt"; \
	  case $$name in dev) project="--extra dev pyproject.toml";; server) project="--extra server --extra postgres \
	    pyproject.toml";; *) project=;; esac; \
	  $(RUN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --upgrade \
	    --no-header --no-emit-index-url --no-emit-find-links \
	    $$project requirements/$$name.in -o requirements/$$name.txt || exit 1; done

clean:  ## remove the virtual environments and all caches
	rm -rf $(VENV) $(BENCH_VENV) $(FUNCTIONS_VENV) $(SCRIPTS_VENV) $(RELEASE_VENV) .venv-kubernetes-* .venv-mls-* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
