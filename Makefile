# make run    a braid of three brokers on loopback, with their stores in ./data, and a demonstration on it
#             (DEMO= leaves the demonstration out, DEMO=flow shows a dataflow; PORT=1883, BROKERS=3 and
#             DATA=data say where and how many; admin ports are 8000 above)
# make test   all tests            make check  ruff and mypy --strict
# make bench  the benchmarks       make soak   overlays under faults, many seeds
# make pages  all pages followed, Spark's included
# make docs   the generated tables in docs/    make chaos  brokers that are killed, drained, cut off, lost
# make clean  removes what make made
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CLASSES := $(VENV)/.spark-classes
JOBS ?= 4
BROKERS ?= 3
PORT ?= 1883
DATA ?= data
DEMO ?= yes

.PHONY: run test pages check bench soak chaos docs clean
.DEFAULT_GOAL := run

$(READY): pyproject.toml
	@echo "Setting up $(VENV), once: BraidMQ, Spark and what the tests need, 1.2 GB."
	@echo "This takes a minute or two, and more where the network is slow. First a virtual environment ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@echo "... now the packages; nothing is said until they are there ..."
	@$(BIN)/python -m pip install --quiet --editable ".[spark]" --group dev
	@touch $@
	@echo "... done: $(BIN)/braidmq is there."

run: $(READY)
	$(BIN)/braidmq $(if $(filter flow,$(DEMO)),flow demo,$(if $(DEMO),demo,up)) --brokers $(BROKERS) --port $(PORT) --data $(DATA)

$(CLASSES): $(READY)
	@echo "Starting Spark once, so that it starts in half the time from now on: half a minute ..."
	@$(BIN)/braidmq doctor --spark --json > /dev/null || echo "... it did not: tests take longer."
	@touch $@

test: $(CLASSES)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -q

pages: $(CLASSES)
	ALL_PAGES=yes $(BIN)/python -m pytest -n 2 --dist worksteal -q tests/docs

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python -m bench
	$(BIN)/python -m bench.braid
	$(BIN)/python -m bench.acknowledged
	$(BIN)/python -m bench.fleet --minutes 5
	$(BIN)/python -m bench.drain
	$(BIN)/python -m bench.cameras
	$(BIN)/python -m bench.overlays
	$(BIN)/python -m bench.log
	$(BIN)/python -m bench.journal
	$(BIN)/python -m bench.processors
	$(BIN)/python -m bench.pipeline
	$(BIN)/python -m bench.stateful
	$(BIN)/python -m bench.fanout
	$(BIN)/python -m bench.placement

soak: $(READY)
	$(BIN)/python -m tests.soak

chaos: $(READY)
	$(BIN)/python -m tests.chaos --minutes 10 --brokers 10 --clients 100

docs: $(READY)
	$(BIN)/python -m braidmq.config.docs docs/configuration.md
	$(BIN)/python -m tests.conformance.table

clean:
	rm -rf $(VENV) data .mypy_cache .ruff_cache .pytest_cache bench/build
