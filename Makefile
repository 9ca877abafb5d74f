# fedpatch. `make` alone lists what can be made; CONTRIBUTING.md says more.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.NOTPARALLEL:
.DEFAULT_GOAL := help

ifeq ($(filter oneshell,$(.FEATURES)),)
$(error this Makefile needs GNU make 3.82 or later)
endif

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.made-by-make

# The Python to build .venv with; empty: the first of these that is 3.11, 3.12 or 3.13.
PYTHON ?=
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
# More options for pip, e.g. another index to look at.
PIP_ARGS ?=
# Options of `fedpatch demo`.
ARGS ?= --out demo-out

# pfl and Flower, for the benchmark to time, in an environment of their own.
PEERS := .venv-peers
# Options of the benchmark.
BENCH_ARGS ?= --out results/benchmarks/simulation.json

.PHONY: help setup system-deps demo test lint types imports format precommit bench bench-peers clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: setup ## train a small fleet on this machine (options: make demo ARGS="--help")
	@$(BIN)/fedpatch demo $(ARGS)

test: setup system-deps lint types imports ## run every check, then the tests
	@$(BIN)/python -m pytest

setup: $(STAMP) ## build .venv with all that constraints.txt pins
	@:

lint: setup ## check style and layout
	@$(BIN)/ruff check
	$(BIN)/ruff format --check

types: setup ## check types
	@$(BIN)/mypy

imports: setup ## check who imports whom
	@$(BIN)/lint-imports --no-logo

format: setup ## mend style and layout where that is safe
	@$(BIN)/ruff check --fix
	$(BIN)/ruff format

precommit: setup ## run the quick checks now, and from now on before each commit
	@$(BIN)/pre-commit install
	$(BIN)/pre-commit run --all-files

bench: setup ## time a simulated round beside other ways to do it (options: make bench BENCH_ARGS="--help")
	@$(BIN)/python -m benchmarks.simulation $(BENCH_ARGS)

bench-peers: setup ## build .venv-peers, with pfl and Flower for `make bench` to time
	@if ! $(BIN)/python -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then
		echo "make: pfl needs Python 3.11 or 3.12, and $(VENV) has another" >&2
		exit 1
	fi
	echo "make: installing pfl, Flower and what they need into $(PEERS); this takes minutes"
	$(BIN)/python -m venv --clear $(PEERS)
	install() { $(PEERS)/bin/python -m pip install --disable-pip-version-check -q "$$@" $(PIP_ARGS); }
	install 'torch==2.13.0'
	install -r benchmarks/peers-requirements.txt
	install --no-deps 'flwr==1.42.*' 'pfl==0.6.*'

clean: ## remove caches, builds and the demo's output, but not .venv
	@rm -rf .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist demo-out
	find . -path ./$(VENV) -prune -o -name __pycache__ -print0 | xargs -0r rm -rf

# Shell function: install Debian packages, if that needs no password.
define apt_install
apt_install() {
	command -v apt-get >/dev/null || return 1
	local as_root=
	[ "$$(id -u)" = 0 ] || as_root="sudo -n"
	$$as_root true 2>/dev/null || return 1
	echo "make: installing $$* with apt-get"
	$$as_root apt-get update -qq || echo "make: apt-get update failed; going on with the package lists that are here"
	$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends "$$@" >/dev/null
}
endef

# A virtual environment holds absolute paths, so the stamp says where it was made: a moved or copied one is made anew.
ifneq ($(shell cat $(STAMP) 2>/dev/null),$(CURDIR))
$(STAMP): FORCE
endif

$(STAMP): pyproject.toml constraints.txt
	@$(apt_install)
	find_python() {
		for python in $(PYTHONS); do
			"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && return
		done
	}
	can_venv() { "$$python" -c 'import ensurepip, venv' 2>/dev/null; }
	fits_here() {
		[ ! -e $@ ] || [ "$$(cat $@)" = "$(CURDIR)" ] || return
		$(BIN)/python -m pip --version >/dev/null 2>&1
	}
	if ! fits_here; then
		find_python || apt_install python3 python3-venv || true
		if ! find_python; then
			echo "make: no Python 3.11, 3.12 or 3.13 among: $(PYTHONS)"
			echo "make: install one (Debian 12, Ubuntu 24.04: apt install python3 python3-venv),"
			echo "make: or say where it is: make setup PYTHON=/path/to/python3.12"
			exit 1
		fi >&2
		package=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
		can_venv || apt_install "$$package" || true
		if ! can_venv; then
			echo "make: $$python lacks the modules venv and ensurepip; on Debian: apt install $$package" >&2
			exit 1
		fi
		echo "make: building $(VENV) with $$("$$python" --version)"
		"$$python" -m venv --clear $(VENV)
	fi
	echo "make: installing fedpatch and its tools into $(VENV); the first time this takes minutes"
	if [ "$$(uname -sm)" = "Linux x86_64" ] && [ ! -e $(BIN)/torchrun ] && [ -z "$(PIP_ARGS)" ]; then
		echo "make: PyTorch's usual build for Linux x86_64 brings gigabytes of CUDA along; the build for CPUs is enough."
		echo "make: pytorch.org, Get Started, names its index: make setup PIP_ARGS='--extra-index-url <that index>'"
	fi
	rm -f $@
	$(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt -e '.[dev]' $(PIP_ARGS)
	echo "$(CURDIR)" >$@

system-deps: ## install the MQTT broker that tests start (where that needs no password)
	@$(apt_install)
	PATH="$$PATH:/usr/sbin:/usr/local/sbin"
	found() { command -v mosquitto && command -v mosquitto_pub; } >/dev/null
	found || apt_install mosquitto mosquitto-clients || true
	if ! found; then
		echo "make: no mosquitto here, so the tests that need a real MQTT broker will be skipped"
		echo "make: on Debian: apt install mosquitto mosquitto-clients"
	fi
