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
# Each holds the path of the checkout that $(VENV) was built for: with all tools of development, and with what the demo needs at least.
STAMP := $(VENV)/.made-by-make
DEMO_STAMP := $(VENV)/.made-for-demo

# The Python to build .venv with; empty: the first of these that is 3.11, 3.12 or 3.13.
PYTHON ?=
PYTHONS := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
# More options for pip, e.g. another index to look at.
PIP_ARGS ?=
# Options of `fedpatch demo`.
ARGS ?= --out demo-out

# pfl and Flower, for the benchmark to time, in an environment of their own.
PEERS := .venv-peers
# Experiment trackers, each with many packages of its own, in an environment of their own.
EXTRAS := .venv-extras
# Options of the benchmark.
BENCH_ARGS ?= --cnn --out results/benchmarks/simulation.json
# Options of the benchmark of the coordinator, which needs no data.
COORDINATION_ARGS ?= --tasks mnist --devices 10,50,200 --turns 3

# How many files of tests are played at a time; the tests of CI wait most of the time. 0: one after the other, in one process.
TEST_JOBS ?= $(shell n=$$(nproc); echo $$(((n > 4 ? 4 : n > 2 ? 3 : n + 1)$(if $(CI), + 1))))

# Tests with a target of their own, which `make check-all` plays. The other tests are played by CI=true, and of these the quick
# ones by `make test`. `make coverage` adds the slow tests, and the system tests that alone run some of the code.
OWN_TARGETS := faults benchmarks pages hosts arm64 packages
CHECK := not slow$(foreach marker,$(OWN_TARGETS), and not $(marker))
QUICK := $(CHECK) and not medium and not system
# The parts of `make check-all`, in their order.
PARTS ?= test slow faults docs-check bench-check packages extras hosts arm64
SYSTEM_TO_COVER := tests/system/test_devices_held.py tests/system/test_doctor.py tests/system/test_service.py \
	tests/system/test_two_coordinators.py tests/system/test_watch.py tests/coordinator/demo/test_demo.py

# Fuzzing: how many times the examples of the ordinary tests, seconds for each decoder, which decoders (none: all).
FUZZ_EFFORT ?= 20
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
# Has wheels for Linux on x86_64, Python 3.11 to 3.13, and takes a clang with libFuzzer to be built elsewhere.
ATHERIS := atheris==3.0.0

# Mutation tests: the pure room whose code is changed.
ROOM ?=
MUTMUT := mutmut==3.8.1

# Seeds of the schedules of faults that `make faults` plays, e.g. 7 or 1,100..200: with processes, and in virtual time.
FAULT_SEEDS ?= 0..31
STANDBY_SEEDS ?= 0..13
SIMULATED_SEEDS ?= $(if $(filter 0..31,$(FAULT_SEEDS)),0..199,$(FAULT_SEEDS))
# Soaking: rounds to play, and minutes after which it ends in any case.
SOAK_ROUNDS ?= 500
SOAK_MINUTES ?= 60

# The wheelhouse: processor and Pythons of the hosts, and what their task needs besides, e.g. WITH="scikit-learn".
ARCH ?= aarch64
PYTHONS_OF_HOSTS ?= 3.11 3.13
WITH ?=

# Run the tests that an expression of markers selects, several files at a time.
# With PYTHONDONTWRITEBYTECODE each of the hundreds of processes that tests start would compile our modules again.
pytest = env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder -m '$(1)'

.PHONY: help setup mosquitto system-deps demo check-all slow docs-check bench-check coverage dist docs packages release test lint style ansible-lint types imports bandit audit format precommit bench bench-peers extras fuzz mutants faults hosts arm64 emulator soak wheelhouse clean FORCE

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEMO_STAMP) ## train a small fleet on this machine (options: make demo ARGS="--help")
	@$(BIN)/fedpatch demo $(ARGS)

test: setup $(if $(CI),system-deps,mosquitto) ## run the quick tests, with style, types and import rules (with CI=true also tests of real processes)
	@$(call pytest,$(if $(CI),$(CHECK),$(QUICK)))

check-all: setup ## play everything, hours, and print what was played (make check-all PARTS="slow faults")
	@$(BIN)/python -m scripts.check_all $(PARTS)

slow: setup system-deps ## run the tests that take long: whole fleets, long schedules, tables and pictures
	@$(call pytest,slow$(foreach marker,$(OWN_TARGETS), and not $(marker)))

docs-check: setup system-deps ## follow the pages of docs/: their commands, tutorials and notebook
	@$(call pytest,pages)

bench-check: setup system-deps ## run each benchmark at toy size
	@$(call pytest,benchmarks)

setup: $(STAMP) ## build .venv with all that constraints.txt pins
	@:

lint: style ansible-lint ## check style and layout

style: setup
	@$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/yamllint --strict ansible

ansible-lint: setup
	@cd ansible && LC_ALL=C.UTF-8 PATH="$(CURDIR)/$(BIN):$$PATH" ansible-lint -q

types: setup ## check types
	@$(BIN)/mypy

imports: setup ## check who imports whom
	@$(BIN)/lint-imports --no-logo

bandit: setup ## look for insecure code, without the network
	@$(BIN)/bandit --quiet --configfile pyproject.toml --recursive src shared coordinator device_agent relay simulator benchmarks studies ansible \
		2> >(grep -v "nosec encountered" >&2 || true) # it says so of each part of a statement in which nothing is wrong

audit: bandit ## that, and ask the package index for known vulnerabilities of what is pinned (says so where it cannot)
	@$(BIN)/python -m tests.support.audit

format: setup ## correct style and layout where that is safe
	@$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup ## build the documentation as a site in build/site; a broken link fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	echo "make: build/site/index.html"

dist: setup ## build the wheel and the source distribution in dist
	@rm -rf build/lib # from which setuptools would take files that are no more
	$(BIN)/python -m build --no-isolation --outdir dist . >/dev/null
	ls dist

coverage: setup system-deps ## fail where the tests leave too much of the code unrun, and say where (an hour; CONTRIBUTING.md has the bounds)
	@rm -rf build/coverage
	# With CI=true examples that are drawn are the same each time, and so is what they run.
	run() { CI=true FEDPATCH_EXAMPLES=100 $(BIN)/coverage run -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder "$$@"; }
	run -m '$(subst not slow and ,,$(subst  and not medium,,$(QUICK)))'
	run -m system $(SYSTEM_TO_COVER)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet -o build/coverage/report.json
	$(BIN)/python -m tests.support.covered

packages: setup ## install the wheel with each extra in an empty environment, from the package index
	@$(BIN)/python -m pytest -m packages

release: setup ## check, test, build and tag what is committed; pushes nothing (make release VERSION=0.2.0)
	@$(BIN)/python -m scripts.release $(or $(VERSION),$(error make release VERSION=x.y.z))

precommit: setup ## run the quick checks now, and from now on before each commit
	@$(BIN)/pre-commit install
	$(BIN)/pre-commit run --all-files

bench: setup ## time a simulated round and a real one's coordinator beside other ways to do them, and measure a device (options: make bench BENCH_ARGS="--help")
	@$(BIN)/python -m benchmarks.training.simulation $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.network.coordination $(COORDINATION_ARGS)
	$(BIN)/python -m benchmarks.device.footprint
	if command -v strace >/dev/null; then $(BIN)/python -m benchmarks.device.file_writes; else echo "make: no strace, so a device's writes are not counted"; fi

bench-peers: setup ## build .venv-peers, with pfl, Flower and TenSEAL for the benchmarks to time
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

extras: setup ## test trackers, traces and Home Assistant's discovery with the real packages (gigabytes the first time)
	@test -x $(EXTRAS)/bin/pytest || { $(BIN)/python -m venv $(EXTRAS) && $(EXTRAS)/bin/pip install --quiet $(PIP_ARGS) --editable '.[tensorboard,mlflow,wandb]' pytest pytest-timeout hypothesis; }
	$(EXTRAS)/bin/python -m pytest -q --noconftest -p no:cacheprovider tests/shared/trackers tests/coordinator/observability/test_round_tracing.py
	@# Home Assistant pins its dependencies, so it has an environment of its own; this release is for Python 3.11 and 3.12.
	test -x $(EXTRAS)-home/bin/pytest || { $(BIN)/python -m venv $(EXTRAS)-home && $(EXTRAS)-home/bin/pip install --quiet $(PIP_ARGS) homeassistant==2024.3.3 paho-mqtt 'setuptools<81' pytest pytest-timeout hypothesis msgspec msgpack && $(EXTRAS)-home/bin/pip install --quiet --no-deps --editable .; }
	$(EXTRAS)-home/bin/python -m pytest -q --noconftest -p no:cacheprovider tests/device_agent/bus/test_home_assistant.py

fuzz: setup ## look for bytes and messages that break the decoders and state machines (make fuzz FUZZ_SECONDS=600)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install --disable-pip-version-check -q \
		--only-binary :all: '$(ATHERIS)' $(PIP_ARGS) || echo "make: no atheris for this system" >&2
	FEDPATCH_FUZZ_EFFORT=$(FUZZ_EFFORT) $(BIN)/python -m pytest --timeout 0 tests/fuzz
	if $(BIN)/python -c 'import atheris' 2>/dev/null; then
		$(BIN)/python -m tests.fuzz.guided --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)
	else
		echo "make: without atheris, only what Hypothesis draws was tried"
	fi

mutants: setup ## change the code of a pure room a little, and find the changes that no test notices (make mutants ROOM=coordinator/rounds)
	@$(BIN)/python -c 'import mutmut' 2>/dev/null || $(BIN)/python -m pip install --disable-pip-version-check -q '$(MUTMUT)' $(PIP_ARGS)
	$(BIN)/python -m scripts.mutants $(or $(ROOM),$(error make mutants ROOM=coordinator/rounds))

hosts: setup system-deps ## provision booted hosts with the playbooks of ansible/, and play a fleet's life on them (needs root)
	@$(call pytest,hosts)

arm64: setup system-deps emulator ## the same with devices that have an emulated processor of a Raspberry Pi 4 (takes long)
	@$(BIN)/python -m pytest -m arm64

faults: setup system-deps ## kill processes and cut lines while rounds go on, for real and in virtual time, by schedules drawn from seeds (make faults FAULT_SEEDS=100..200)
	@FAULT_SEEDS=$(FAULT_SEEDS) $(BIN)/python -m pytest tests/faults/test_kills.py $(if $(filter 0..31,$(FAULT_SEEDS)),tests/faults/test_partitions.py)
	FAULT_SEEDS=$(SIMULATED_SEEDS) $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile tests/faults/simulated tests/power_cut/test_power_cuts.py
	$(if $(filter 0..31,$(FAULT_SEEDS)),$(call pytest,faults) --ignore tests/faults/test_kills.py --ignore tests/faults/test_partitions.py)
	$(BIN)/python -m tests.faults.standby_drill --seeds $(STANDBY_SEEDS) --out results/robustness/standby.json

soak: setup ## play hundreds of rounds while the broker is killed, and say what grows (SOAK_ROUNDS, SOAK_MINUTES)
	@$(BIN)/python -m tests.faults.soak --rounds $(SOAK_ROUNDS) --minutes $(SOAK_MINUTES) --out results/robustness/soak.json

wheelhouse: setup ## fetch what hosts of a fleet are installed from (make wheelhouse ARCH=x86_64 WITH="scikit-learn")
	@$(BIN)/python ansible/wheelhouse.py --arch $(ARCH) $(addprefix --python ,$(PYTHONS_OF_HOSTS)) $(addprefix --with ,$(WITH)) \
		--pip-args='$(PIP_ARGS)'

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
ifneq ($(shell cat $(DEMO_STAMP) 2>/dev/null),$(CURDIR))
$(DEMO_STAMP): FORCE
endif

$(STAMP): EXTRA := dev
$(DEMO_STAMP): EXTRA := demo
# The tutorial after the demo runs the tests of a new task.
$(DEMO_STAMP): ALSO := pytest
$(STAMP) $(DEMO_STAMP): pyproject.toml constraints.txt
	@$(apt_install)
	mkdir -p build
	exec 9>build/setup.lock
	if command -v flock >/dev/null && ! flock -n 9; then
		echo "make: another make is building $(VENV); waiting for it"
		flock 9
		if [ "$$(cat $@ 2>/dev/null)" = "$(CURDIR)" ] && [ $@ -nt pyproject.toml ] && [ $@ -nt constraints.txt ]; then exit 0; fi
	fi
	find_python() {
		for python in $(PYTHONS); do
			"$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && return
		done
	}
	can_venv() { "$$python" -c 'import ensurepip, venv' 2>/dev/null; }
	fits_here() {
		for stamp in $(STAMP) $(DEMO_STAMP); do
			[ ! -e "$$stamp" ] || [ "$$(cat "$$stamp")" = "$(CURDIR)" ] || return
		done
		$(BIN)/python -m pip --version >/dev/null 2>&1
	}
	if [ -L $(VENV) ]; then
		echo "make: $(VENV) is a link to $$(readlink $(VENV)); to build it here would empty that one, so take the link away first" >&2
		exit 1
	fi
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
	echo "make: installing fedpatch with $(if $(filter dev,$(EXTRA)),its tools,what the demo needs) into $(VENV); the first time this takes minutes"
	if [ "$$(uname -sm)" = "Linux x86_64" ] && [ ! -e $(BIN)/torchrun ] && [ -z "$(PIP_ARGS)" ]; then
		echo "make: PyTorch's usual build for Linux x86_64 brings gigabytes of CUDA along; the build for CPUs is enough."
		echo "make: pytorch.org, Get Started, names its index: make setup PIP_ARGS='--extra-index-url <that index>'"
	fi
	# Metadata that an older layout of this checkout left here would name modules that are no more, and be found before the right one.
	rm -rf $(STAMP) $(DEMO_STAMP) fedpatch.egg-info
	latest_line() { # of what comes in, where somebody looks on
		[ -t 1 ] || exec cat >/dev/null
		width=$$(stty size 2>/dev/null </dev/tty | cut -d' ' -f2)
		while IFS= read -r line; do printf '\r\033[K%.*s' "$$(( $${width:-80} - 1 ))" "$$line"; done
		printf '\r\033[K'
	}
	trap 'exit 130' INT
	if ! $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -e '.[$(EXTRA)]' $(ALSO) $(PIP_ARGS) 2>&1 |
		tee $(VENV)/pip.log | latest_line; then
		tail -n 20 $(VENV)/pip.log
		echo "make: pip could not install this; its output is in $(VENV)/pip.log"
		exit 1
	fi >&2
	echo "$(CURDIR)" | tee $(sort $@ $(DEMO_STAMP)) >/dev/null

emulator: ## install what runs programs of aarch64, for the tests on an emulated Raspberry Pi
	@$(apt_install)
	PATH="$$PATH:/usr/sbin:/usr/local/sbin"
	found() { command -v qemu-aarch64-static && command -v update-binfmts && command -v arch-test; } >/dev/null
	found || apt_install qemu-user-static binfmt-support arch-test || true
	if ! found; then
		echo "make: no QEMU for aarch64 here, so the tests on an emulated Raspberry Pi will be skipped"
		echo "make: on Debian: apt install qemu-user-static binfmt-support arch-test"
	fi

mosquitto: ## install the broker that most tests use (where that needs no password)
	@$(apt_install)
	PATH="$$PATH:/usr/sbin:/usr/local/sbin"
	found() { command -v mosquitto && command -v mosquitto_pub; } >/dev/null
	found || apt_install mosquitto mosquitto-clients || true
	if ! found; then
		echo "make: no mosquitto here, so the tests that need a real MQTT broker will be skipped"
		echo "make: on Debian: apt install mosquitto mosquitto-clients"
	fi

system-deps: mosquitto ## install brokers, Prometheus, nginx, PostgreSQL, PgBouncer, Slurm, sshd, faketime, tmux, Chromium, D-Bus and containers for the tests (where that needs no password)
	@$(apt_install)
	PATH="$$PATH:/usr/sbin:/usr/local/sbin"
	found() { compgen -G '/usr/lib/*/faketime/libfaketime.so.1'; } >/dev/null
	found || apt_install faketime || true
	found || echo "make: no faketime here, so the tests of wrong clocks will be skipped (on Debian: apt install faketime)"
	found() { command -v strace; } >/dev/null
	found || apt_install strace || true
	found || echo "make: no strace here, so the tests of power cuts will be skipped (on Debian: apt install strace)"
	found() { command -v postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres'; } >/dev/null
	found || apt_install postgresql || true
	found || echo "make: no PostgreSQL here, so the tests of registries in a database will be skipped (on Debian: apt install postgresql)"
	found() { command -v tmux; } >/dev/null
	found || apt_install tmux || true
	found || echo "make: no tmux here, so the tests in real terminals will be skipped (on Debian: apt install tmux)"
	# 124 MB to load, 395 MB on the disk (Debian 12, where nothing of it was there). Where Chromium is a snap, none is installed.
	found() { command -v chromium; } >/dev/null
	found || apt_install chromium || true
	found || echo "make: no chromium here, so the tests of reports in a browser will be skipped (on Debian: apt install chromium)"
	# The tests start a message bus of their own; whether this system has one running does not matter.
	found() { command -v dbus-daemon && /usr/bin/python3 -c 'import dbusmock'; } >/dev/null 2>&1
	found || apt_install dbus-daemon python3-dbusmock || true
	if ! found; then
		echo "make: no D-Bus or no dbusmock here, so the tests that ask a NetworkManager will be skipped"
		echo "make: on Debian: apt install dbus python3-dbusmock"
	fi
	# Booted hosts for the roles in ansible/; they need root besides, and a Debian mirror.
	found() { command -v systemd-nspawn && command -v mmdebstrap && command -v ip && command -v ssh; } >/dev/null
	found || apt_install systemd-container mmdebstrap iproute2 openssh-client || true
	if ! found; then
		echo "make: no systemd-nspawn, mmdebstrap or ssh here, so the tests on booted hosts will be skipped"
		echo "make: on Debian: apt install systemd-container mmdebstrap iproute2 openssh-client"
	fi
	# What follows are services, which Debian starts at once and at each boot. Only the programs are wanted.
	install_asleep() {
		local package=$$1 as_root=
		shift
		[ "$$(id -u)" = 0 ] || as_root="sudo -n"
		command -v apt-get >/dev/null && $$as_root true 2>/dev/null || return 1
		if [ ! -e /usr/sbin/policy-rc.d ]; then
			trap "$$as_root rm -f /usr/sbin/policy-rc.d" EXIT
			printf '#!/bin/sh\nexit 101\n' | $$as_root install -m 755 /dev/stdin /usr/sbin/policy-rc.d
		fi
		apt_install "$$package" || return 1
		if command -v systemctl >/dev/null; then
			$$as_root systemctl disable --quiet "$$@" 2>/dev/null || true
		else
			$$as_root update-rc.d "$$package" disable || true
		fi
		echo "make: $$package is there for the tests; as a service it is off, now and after a reboot"
	}
	found() { command -v prometheus && command -v promtool; } >/dev/null
	found || install_asleep prometheus prometheus.service || true
	if ! found; then
		echo "make: no Prometheus here, so the tests that let it read the metrics will be skipped"
		echo "make: on Debian: apt install prometheus (that starts it as a service, too)"
	fi
	found() { command -v prometheus-node-exporter; } >/dev/null
	found || install_asleep prometheus-node-exporter prometheus-node-exporter.service || true
	found || echo "make: no node_exporter here, so the tests of the hosts' alerts will be skipped (on Debian: apt install prometheus-node-exporter)"
	found() { PATH="$$PATH:/usr/sbin" command -v pgbouncer; } >/dev/null
	found || install_asleep pgbouncer pgbouncer.service || true
	found || echo "make: no PgBouncer here, so the tests of a pooler will be skipped (on Debian: apt install pgbouncer)"
	found() { command -v nginx; } >/dev/null
	found || install_asleep nginx nginx.service || true
	found || echo "make: no nginx here, so the tests of models by URL will be skipped (on Debian: apt install nginx)"
	# Erlang's epmd may be wanted by others who were here before.
	found() { command -v erl && compgen -G '/usr/lib/*/ejabberd-*/ebin'; } >/dev/null
	if ! found; then
		units=ejabberd.service
		dpkg -s erlang-base >/dev/null 2>&1 || units="$$units epmd.service epmd.socket"
		install_asleep ejabberd $$units || true
	fi
	if ! found; then
		echo "make: no ejabberd here, so the tests that play rounds over it will be skipped"
		echo "make: on Debian: apt install ejabberd (that starts it as a service, too)"
	fi
	found() { PATH="$$PATH:/usr/sbin" command -v haproxy; } >/dev/null
	found || install_asleep haproxy haproxy.service || true
	if ! found; then
		echo "make: no haproxy here, so the tests of a cluster of brokers will be skipped"
		echo "make: on Debian: apt install haproxy (that starts it as a service, too)"
	fi
	found() { command -v sshd; } >/dev/null
	found || install_asleep openssh-server ssh.service || true
	found || echo "make: no sshd here, so the test of a simulation over ssh will be skipped (on Debian: apt install openssh-server)"
	found() { command -v slurmctld && command -v slurmd && command -v munged && command -v sbatch; } >/dev/null
	if ! found; then
		for package in munge slurmctld slurmd; do install_asleep $$package $$package.service || true; done
		apt_install slurm-client || true
	fi
	found || echo "make: no Slurm here, so the test of a simulation on it will be skipped (on Debian: apt install slurm-wlm munge)"
