# penstock: build, test, demonstrate. Every target does the set-up it needs.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c

VENV    := .venv
PY      := $(VENV)/bin/python
STAMPS  := $(VENV)/.stamps
RUST    := $(shell find crates -name '*.rs' -o -name '*.c' -o -name '*.h' -o -name 'Cargo.toml' 2>/dev/null) Cargo.toml Cargo.lock rust-toolchain.toml pyproject.toml

# compiled modules are kept, whatever the caller's habit: a test starts Python hundreds of times
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup build wheel image check test test-long lint pytest rusttest fuzz demo studies bench manual clean

help: ## what can be made
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMPS)/python ## install what is missing: Debian packages, Python environment

$(STAMPS)/system: tools/setup.sh
	@bash tools/setup.sh
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/stores: tools/setup.sh tools/hadoop.sh studies/hadoop/pom.xml $(STAMPS)/system
	@bash tools/setup.sh stores
	bash tools/hadoop.sh > /dev/null
	touch $@

$(STAMPS)/python: requirements/dev.txt $(STAMPS)/system
	@echo 'penstock: installing the Python environment into $(VENV)' >&2
	[ -x $(PY) ] || python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check --require-hashes -r requirements/dev.txt
	touch $@

$(STAMPS)/native: $(RUST) $(STAMPS)/python
	@echo 'penstock: compiling the native part: about four minutes on two processors the first time' >&2
	exec 9>$(STAMPS)/lock; flock 9
	touch $@.begun
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin develop --release --quiet
	cargo build --release --quiet -p penstock-enter
	install -s target/release/penstock-enter python/penstock/host/penstock-enter
	mv $@.begun $@

build: $(STAMPS)/native ## build into .venv

wheel: build ## dist/penstock-*.whl: what it is installed from needs neither clang nor cargo
	# not repaired: that would write into the library which the build keeps and installs again
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(VENV)/bin/maturin build --release --quiet --auditwheel skip --out $(or $(DIST),dist)

image: ## the image `penstock` of Containerfile, by podman or buildah; BUILD_ARGS are passed on
	tool=$$(command -v podman || command -v buildah) || { echo 'penstock: neither podman nor buildah is here' >&2; exit 1; }
	$(MAKE) wheel
	$$tool build $(BUILD_ARGS) -t penstock .

lint: build ## ruff, mypy --strict, names, import-linter, rustfmt, clippy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	# tests, benches and studies are not typed throughout; what they name must be there all the same
	! $(VENV)/bin/mypy --cache-dir .mypy_cache/tests --explicit-package-bases tests bench studies | grep 'Module has no attribute'
	$(VENV)/bin/lint-imports --no-logo
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --quiet -- -D warnings

rusttest: build ## the Rust tests
	cargo test --release --workspace --exclude penstock-bindings --quiet

# Tests share the processors where they need no host, or judge what was counted on it; tests of disks, nodes
# and times go one by one, and so does a new file of the host.
BESIDE := tests/unit tests/property tests/model studies/tests bench/tests
HOST   := $(wildcard $(addsuffix /test_*.py,tests/fuzz tests/integration tests/guest))
TIMED  := $(addprefix tests/integration/test_trace_,disk.py live.py) tests/guest/test_backends.py
PAIRED := $(filter-out $(TIMED),$(filter tests/fuzz/% $(addprefix tests/integration/test_, \
            api.% attack% campaign_policy.% cassandra.% catalogue_postgres.% chunkstore.% collect% conditions.% \
            disk_differential.% disk_power.% every_bundle.% full_state.% launch.% live.% plugins.% run_augment.% \
            storage_layout.% store.% swift.% trace% tutorial.% undo.% wheel.% workload_trace.%) tests/guest/%,$(HOST)))
beside  = $(PY) -m pytest $(1) -n logical --dist loadfile --most-reruns 0 --most-skips 3
paired  = $(PY) -m pytest $(PAIRED) $(1) -n logical --dist loadfile --durations 20
alone   = $(PY) -m pytest $(filter-out $(PAIRED),$(HOST)) $(1) --durations 40
# how often what is not long, and what is, may look again or look away: docs/adr/0037-bounds-that-moved.md
SHORT_PAIRED := --most-reruns 3 --most-skips 3 --most-retaken 0
SHORT_ALONE  := --most-reruns 4 --most-skips 12 --most-retaken 60
LONG_PAIRED  := --most-reruns 1 --most-skips 2 --most-retaken 0
LONG_ALONE   := --most-reruns 2 --most-skips 6 --most-retaken 20

check: lint ## what needs no host: lint, types, the Python tests of all that computes
	$(PY) -m pytest tests studies/tests bench/tests --collect-only -qq
	$(call beside,$(filter-out tests/model,$(BESIDE)) -m "not long")

pytest: build ## the Python tests that are not long
	$(call beside,$(BESIDE) -m "not long")
	$(call paired,-m "not long" $(SHORT_PAIRED))
	$(call alone,-m "not long" $(SHORT_ALONE))

test: lint rusttest pytest ## everything that must hold, but for what is long

test-long: build $(STAMPS)/stores ## the rest: guests of other kernels, sweeps of crashes, whole studies, other stores
	$(call beside,$(BESIDE) -m "long")
	$(call paired,-m "long" $(LONG_PAIRED))
	$(call alone,-m "long" $(LONG_ALONE))

fuzz: build ## a million inputs, 10,000 or more to each reader and route; failing ones go to out/fuzz
	$(PY) -m tests.fuzz --inputs 1000000 --least 10000 --all

demo: build ## the access-pattern study, from nothing to demo/report.html
	$(VENV)/bin/penstock run examples/access-patterns.study.yaml -o demo --resume

studies: build ## the studies on real systems, one after the other, results under out/
	for study in examples/postgres.study.yaml $(wildcard studies/*.study.yaml); do
	  name=$$(basename $$study .study.yaml)
	  $(VENV)/bin/penstock run $$study -o out/$$name --resume
	done

bench: build ## every measurement, beside its peers, kept in bench/results and docs/measurements.md
	missed=0
	for bench in $(filter-out bench/record.py bench/measurements.py,$(wildcard bench/*.py)); do
	  echo "== $$bench"
	  $(PY) $$bench --record || missed=1
	done
	$(PY) bench/measurements.py > docs/measurements.md
	exit $$missed

manual: build ## the manual pages in docs/man, from the command line; docs/glossary.md
	$(PY) tools/manual.py
	cp python/penstock/report/templates/glossary.md docs/glossary.md

clean: ## remove what was built
	rm -rf target dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache demo
