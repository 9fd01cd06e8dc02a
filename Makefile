# penstock: build, test, demonstrate. Every target does the set-up it needs.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.ONESHELL:
.SHELLFLAGS := -euo pipefail -c

VENV    := .venv
PY      := $(VENV)/bin/python
STAMPS  := $(VENV)/.stamps
RUST    := $(shell find crates vendor -name '*.rs' -o -name '*.c' -o -name '*.h' -o -name 'Cargo.toml' 2>/dev/null) Cargo.toml Cargo.lock rust-toolchain.toml pyproject.toml

# a wheel in place of a build: that of PENSTOCK_WHEEL; or, in a clone that was not built, that of dist
PREBUILT := $(or $(PENSTOCK_WHEEL),$(if $(wildcard $(STAMPS)/native),,$(lastword $(sort $(wildcard dist/penstock-*.whl)))))

# compiled modules are kept, whatever the caller's habit: a test starts Python hundreds of times
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup stores ready build wheel image check test test-long lint pytest rusttest fuzz demo picture studies bench manual clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMPS)/dev ## install what the tests need: Debian packages, Python environment

stores: $(STAMPS)/stores ## install what the long tests need beside that: shared stores, Hadoop, LaTeX

ready: ## build while the packages of the tests are installed: one needs the processors, the other the network
	@$(MAKE) --no-print-directory -j2 build setup

# four lists of packages, each with those before it: what the demo needs, what the build needs, what the tests need, what
# the long tests need; one after the other, as two apt-get would be in each other's way
$(STAMPS)/system-run: tools/setup.sh
	@bash tools/setup.sh run
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/system-build: tools/setup.sh
	@bash tools/setup.sh build
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/system-test: tools/setup.sh | $(STAMPS)/system-build
	@bash tools/setup.sh test
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/stores: tools/setup.sh tools/hadoop.sh studies/hadoop/pom.xml | $(STAMPS)/system-test
	@bash tools/setup.sh stores
	bash tools/hadoop.sh > /dev/null
	mkdir -p $(STAMPS)
	touch $@

# the output of what installs and compiles goes to .venv/*.log; the end of it is shown if that fails
logged = bash tools/logged.sh
pip    = $(VENV)/bin/pip install --progress-bar off --disable-pip-version-check

$(STAMPS)/python: requirements/runtime.txt requirements/build.txt | $(if $(PREBUILT),$(STAMPS)/system-run,$(STAMPS)/system-build)
	@echo 'penstock: installing the Python libraries into $(VENV) (215 MB to download, 900 MB on disk)' >&2
	[ -x $(PY) ] || python3 -m venv $(VENV)
	$(logged) libraries $(pip) --require-hashes -r requirements/runtime.txt -r requirements/build.txt
	touch $@

$(STAMPS)/dev: requirements/dev.txt $(STAMPS)/python | $(STAMPS)/system-test
	@echo 'penstock: installing the test programs into $(VENV)' >&2
	$(logged) programs $(pip) --require-hashes -r requirements/dev.txt
	touch $@

$(STAMPS)/native: $(RUST) $(STAMPS)/python | $(STAMPS)/system-build
	@echo 'penstock: compiling the native part: about four minutes on two processors the first time' >&2
	exec 9>$(STAMPS)/lock; flock 9
	touch $@.begun
	unset MAKEFLAGS MFLAGS # cargo and make below it take their own number of jobs
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(logged) develop $(VENV)/bin/maturin develop --release
	$(logged) enter cargo build --release -p penstock-enter
	install -s target/release/penstock-enter python/penstock/host/penstock-enter
	rm -f $(STAMPS)/wheel
	mv $@.begun $@

$(STAMPS)/wheel: $(PREBUILT) $(STAMPS)/python
	@echo 'penstock: installing $(PREBUILT)' >&2
	$(logged) wheel $(pip) --no-deps --no-index --force-reinstall $(PREBUILT)
	rm -f $(STAMPS)/native
	touch $@

build: $(STAMPS)/native ## build into .venv

wheel: build ## dist/penstock-*.whl: what it is installed from needs neither clang nor cargo
	@# not repaired: that would write into the library which the build keeps and installs again
	VIRTUAL_ENV=$(CURDIR)/$(VENV) $(logged) wheel $(VENV)/bin/maturin build --release --auditwheel skip --out $(or $(DIST),dist)

image: ## the image `penstock` of Containerfile, by podman or buildah; BUILD_ARGS are passed on
	tool=$$(command -v podman || command -v buildah) || { echo 'penstock: neither podman nor buildah is here' >&2; exit 1; }
	$(MAKE) wheel
	$$tool build $(BUILD_ARGS) -t penstock .

lint: build $(STAMPS)/dev ## ruff, mypy --strict, names, import-linter, rustfmt, clippy
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	# tests, benches and studies are not typed throughout; what they import of penstock must be there all the same
	{
	  $(VENV)/bin/mypy
	  wrong=$$($(VENV)/bin/mypy tests bench studies | grep -E 'Module "(penstock|tests|bench).*" has no attribute') || true
	  [ -z "$$wrong" ] || { echo "$$wrong"; exit 1; }
	} & types=$$! # mypy uses one processor: the rest is checked meanwhile
	$(VENV)/bin/lint-imports --no-logo
	cargo fmt --all --check
	cargo clippy --release --workspace --all-targets --quiet -- -D warnings
	wait $$types

rusttest: build ## the Rust tests
	cargo test --release --workspace --quiet

# Tests marked `timed` judge a time or a rate and run one by one; all others share the processors. Marks, and no list
# of files, decide (CONTRIBUTING.md). The processor time of each file is compared with tests/costs.json.
COSTS   := out/test-costs
shared  = $(PY) -m pytest -m "$(1) and not timed" -n logical --dist loadfile --no-loadscope-reorder --strict-skips $(addprefix --files-marked ,$(3)) --costs $(COSTS)/$(2)-shared.json
alone   = $(PY) -m pytest -m "$(1) and timed" $(addprefix --files-marked ,timed $(3)) --strict-skips --busy-skips 6 --durations 20 --costs $(COSTS)/$(2)-timed.json

check: lint ## what needs no host: lint, types, the Python tests of all that computes
	$(call shared,not long and not host,check)

pytest: build $(STAMPS)/dev ## the Python tests that are not long
	$(call shared,not long,test)
	$(call alone,not long,test)
	$(PY) tools/test_costs.py compare $(COSTS)/test-*.json

test: ready lint rusttest pytest ## everything that must hold, but for what is long

test-long: ready stores ## the rest: guests of other kernels, sweeps of crashes, whole studies, other stores
	$(call shared,long,long,long)
	$(call alone,long,long,long)
	$(PY) tools/test_costs.py compare $(COSTS)/long-*.json

fuzz: build ## a million inputs, 10,000 or more to each reader and route; failing ones go to out/fuzz
	$(PY) -m tests.fuzz --inputs 1000000 --least 10000 --all

demo: $(if $(PREBUILT)$(wildcard $(STAMPS)/wheel),$(STAMPS)/wheel,build) ## the access-pattern study, from nothing to demo/report.html; PENSTOCK_WHEEL=FILE saves the compiler
	$(VENV)/bin/penstock run examples/access-patterns.study.yaml -o demo --resume

picture: demo $(STAMPS)/dev ## docs/figures/demo-report.webp, from the demo's report
	$(PY) tools/report_figure.py demo/report.html

studies: build ## all studies on real systems, one after the other, and a table; QUICK=1: small ones, under an hour; RECORD=1
	$(PY) tools/measure.py studies $(if $(QUICK),--quick) $(if $(RECORD),--record)

bench: build ## all benchmarks, beside their peers; RECORD=1: kept in bench/results and docs/measurements.md, and all studies
	status=0
	$(PY) tools/measure.py bench $(if $(RECORD),--record) || status=$$?
	$(if $(RECORD),$(PY) bench/measurements.py > docs/measurements.md)
	$(if $(RECORD),$(PY) tools/experiments.py > docs/experiments.md)
	$(if $(RECORD),$(PY) -m studies.prediction_study.accuracy > docs/accuracy.md)
	exit $$status

manual: build ## the manual pages in docs/man, from the command line; docs/glossary.md
	$(PY) tools/manual.py
	cp python/penstock/report/templates/glossary.md docs/glossary.md

clean: ## remove what was built
	rm -rf target dist $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache demo
