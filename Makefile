# Commands for people working with a clone; everything else is `kernelwatch --help` (.venv/bin/kernelwatch).

VENV := .venv
PY := $(VENV)/bin/python
KERNELWATCH := $(VENV)/bin/kernelwatch
PIP := $(PY) -m pip --disable-pip-version-check install --quiet --no-compile
# Byte code of what was installed and of the checkout, on every core where pip uses one.  Contenders cannot write it.
COMPILE := $(PY) -m compileall -qq -j 0 $(VENV)/lib kernelwatch kernels service workers dashboards
# Two processes with a thread each and one file of tests at a time; ARGS="-n 0" runs all in one, as a debugger wants it.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# What is decided without torch, contenders and browsers, and the rules of the project.
FAST := $(wildcard tests/test_*.py) tests/service/domain tests/service/reports tests/service/forge tests/client
export PYTHONUNBUFFERED := 1
# Else pytest rewrites the assertions of every module again in each run, a third of collecting them.
unexport PYTHONDONTWRITEBYTECODE

# Interpreters in the order of preference; a name may exist without an interpreter behind it.
PYTHONS := python3 python3.13 python3.12 python3.11 python
FITS := import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-benchmarks test-fast test-image attack check house same wheel commands-reference skipped slow interpreted pictures doctor secrets clean bench bench-api bench-arena bench-comment bench-control bench-detect bench-families bench-judge bench-facts bench-history bench-kernels bench-pages bench-power bench-session bench-scale study-s1 study-s2 study-s3 study-s4
.DELETE_ON_ERROR:

help:  ## Show this
	@echo "kernelwatch: a GPU kernel performance regression service"
	@echo
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 24

run: $(VENV)/.runtime  ## Set up what is missing, then run API, dashboard and worker with the demo, until Ctrl-C
	@$(KERNELWATCH) stack list | grep -q '^host ' || { \
	  echo "Making the base environment with torch (once; some minutes) ..." && \
	  $(KERNELWATCH) stack create host && \
	  { $(KERNELWATCH) doctor || true; }; }
	@exec $(KERNELWATCH) up --demo

test: check  ## Set up what the tests need, then check lint and types and run the tests (ARGS="-k story" for some)
	$(PYTEST) $(ARGS)

test-all: check  ## The same with the long tests: the demo, and each forge, theme and architecture
	$(PYTEST) --with long $(ARGS)

test-fast: $(VENV)/.fast  ## Run the tests of FAST, for which nobody waits for torch (ARGS="-k recipe" for some)
	$(PYTEST) -m "not torch and not demo" $(FAST) $(ARGS)

test-benchmarks: $(VENV)/.dev  ## Run the tests of the benchmarks and of the programs of studies, the long ones too
	$(PYTEST) --with long benchmarks/tests $(ARGS)

attack: $(VENV)/.dev  ## Attack the service, the sandbox and the measurement on 127.0.0.1; table in build/attacks.md
	$(PY) -m pytest -n 0 --with attack --attack-table build/attacks.md tests/attacks $(ARGS)

test-image: $(VENV)/.dev  ## Build the container images, run the fleet from them and kill its processes (buildah, podman; root)
	$(PY) -m pytest -n 0 --with image tests/project/test_images.py $(ARGS)

check: $(VENV)/.dev  ## Check lint and types
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(VENV)/bin/shellcheck ci/kernelwatch.sh

house: $(VENV)/.dev  ## Count how large and how tangled the product is (ARGS=--walks: follow values through a story too)
	@$(PY) -m benchmarks.house $(ARGS)

same: $(VENV)/.dev  ## Compare what the API, pages, commands and stored verdicts say with another revision (BASE=main~5)
	@$(PY) -m benchmarks.same --base $(or $(BASE),HEAD)

doctor: $(VENV)/.runtime  ## Check this machine and print a fix for everything that is missing
	@$(KERNELWATCH) doctor

# Compose mounts the files for another user as they are; the mode of the folder keeps others out.  HOST names workers.
secrets:  ## Make passwords for the fleet (docker-compose.yml) in ./secrets; existing ones stay
	@mkdir -p -m 700 secrets
	@umask 022; new() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }; cd secrets; \
	  keep() { [ -e "$$1" ] || { cat > "$$1" && echo "made secrets/$$1"; }; }; \
	  new | keep kernelwatch_database_password; \
	  new | keep kernelwatch_webhook_secret; \
	  printf '' | keep kernelwatch_github_token; \
	  printf '' | keep kernelwatch_channels; \
	  new | keep kernelwatch_gitlab_webhook_secret; \
	  printf '' | keep kernelwatch_gitlab_token; \
	  [ -e rabbitmq_user ] || { password=$$(new); \
	    printf 'default_user = kernelwatch\ndefault_pass = %s\n' "$$password" | keep rabbitmq_user; \
	    printf 'amqp://kernelwatch:%s@broker:5672//' "$$password" > kernelwatch_broker_url; }
	@grep -qs '^HOST=' .env || echo "HOST=$$(uname -n)" >> .env
	@echo "Put a GitHub token into secrets/kernelwatch_github_token; the webhook's secret is in secrets/kernelwatch_webhook_secret.  GitLab's are next to them, in kernelwatch_gitlab_*."

wheel: $(VENV)/.dev  ## Build the wheel into build/wheel
	@rm -rf build/lib build/wheel
	@$(PY) -m pip --disable-pip-version-check wheel --quiet --no-build-isolation --no-deps --wheel-dir build/wheel .
	@rm -rf kernelwatch.egg-info
	@ls build/wheel/*.whl

commands-reference: $(VENV)/.dev  ## Write the tables of commands in docs/cli.md
	$(PY) -m tests.project.commands_reference

slow: $(VENV)/.dev  ## Measure which tests are slow, in tests/slow.txt: they run at night (an hour on two idle cores)
	KERNELWATCH_WRITE_SLOW=1 $(PYTEST) --with long $(ARGS)

interpreted: $(VENV)/.dev  ## Interpret the kernels, and note that these sources were right, so that only a change is interpreted again
	$(PYTEST) --with long $(addprefix tests/kernels/norms/test_,norms.py modules.py regions.py wide.py)
	$(PY) -m tests.kernels.norms.unchanged

skipped: $(VENV)/.dev  ## Write how many tests each mark and each lack leaves out, in tests/skipped.toml
	$(PY) -m tests.skipped

bench:  ## Run every benchmark; those that need a GPU say so and are skipped without one
	@$(if $(ARGS),$(error benchmarks have different options: give ARGS to one of bench-judge, bench-families, bench-detect, bench-history, bench-facts, bench-arena, bench-kernels, bench-power or bench-session))
	@$(MAKE) --no-print-directory bench-judge bench-families bench-detect bench-history bench-facts bench-arena bench-kernels bench-power bench-session bench-api bench-comment bench-control bench-pages bench-scale

bench-arena: $(VENV)/.dev  ## How well measurements repeat (a GPU, with Quack)
	@$(PY) -m benchmarks.kernels.arena $(ARGS)

bench-session: $(VENV)/.dev  ## Seconds of a session by phase, as a worker runs it (a GPU with Quack, or this processor)
	@$(PY) -m benchmarks.kernels.session $(ARGS)

bench-kernels: $(VENV)/.dev  ## Our kernels compared with Quack, Inductor and Liger: table and pictures (a GPU, with Quack)
	@$(PY) -m benchmarks.kernels.kernels $(ARGS)

bench-facts: $(VENV)/.dev  ## How long compiling 200 cases for two architectures takes, without a GPU
	@$(PY) -m benchmarks.kernels.facts_speed $(ARGS)

bench-api: $(VENV)/.dev .venv-lnt/.made  ## CPU time of requests to the API and to LNT, and how fast 100 MB of measurements are stored
	@$(PY) -m benchmarks.api.speed --lnt .venv-lnt/bin/python $(ARGS)
	@$(PY) -m benchmarks.api.ingest_speed

bench-comment: $(VENV)/.dev  ## How long a pull request waits for its comment (ARGS=--measure: with building and measuring; "--fleet URL")
	@$(PY) -m benchmarks.api.comment_latency $(ARGS)

pictures: $(VENV)/.dev  ## Draw the pictures of README and docs again (a browser)
	@$(PY) -m benchmarks.pictures $(ARGS)

bench-pages: $(VENV)/.dev .venv-lnt/.made  ## The pages against their limits, with a large database, and LNT's (ARGS="--only run --json FILE")
	@$(PY) -m benchmarks.pages.study --lnt .venv-lnt/bin/python $(ARGS)

bench-scale: $(VENV)/.dev  ## What pages cost in databases of four sizes, of server and database (ARGS="--postgresql URL")
	@$(PY) -m benchmarks.pages.scale $(ARGS)

bench-judge: $(VENV)/.dev  ## How long a run of 200 cases takes to judge
	@$(PY) -m benchmarks.verdicts.speed $(ARGS)

bench-families: $(VENV)/.dev  ## How often verdicts are wrong: simulated runs with the noise of an H200 (ARGS=--quick: minutes)
	@$(PY) -m benchmarks.verdicts.families $(ARGS)

bench-history: $(VENV)/.dev  ## How long a scan of 1,000 series of 1,000 revisions takes, and of one more revision
	@$(PY) -m benchmarks.history_speed $(ARGS)

bench-control: $(VENV)/.dev  ## What claims and planning cost with 100 workers and 1,000 targets (ARGS="--database URL")
	@$(PY) -m benchmarks.control $(ARGS)

bench-detect: $(VENV)/.dev .venv-peers/.made  ## Change points: made noise, injected patterns, labelled series, ours and peers' (ARGS="made arriving")
	@$(PY) -m benchmarks.detect.study --peers .venv-peers/bin/python $(ARGS)

bench-power: $(VENV)/.dev  ## Which planted slow-downs are found here, and what is reported about equal code (a GPU)
	@$(PY) -m benchmarks.power $(ARGS)

study-s1: $(VENV)/.dev  ## Study: torch.compile against Quack for norms (ARGS=--quick: fewer cases)
study-s2: $(VENV)/.dev  ## Study: eager, make_fx, regional and full compilation of a transformer
study-s3: $(VENV)/.dev  ## Study: the sum of dweight fused, or in a kernel of its own
study-s4: $(VENV)/.dev  ## Study: which assumptions of Inductor make models faster
study-s1 study-s2 study-s3 study-s4:
	@$(KERNELWATCH) study run $(@:study-%=%) $(ARGS)

clean:  ## Remove the environment; the state folder with the database stays
	rm -rf $(VENV)

$(VENV)/bin/python:
	@for python in $(PYTHONS); do \
	  if "$$python" -c '$(FITS)' >/dev/null 2>&1; then exec "$$python" -m venv $(VENV); fi; \
	done; \
	echo "kernelwatch needs Python 3.11, 3.12 or 3.13 with venv; none of these is one: $(PYTHONS)." >&2; \
	echo "On Debian or Ubuntu: sudo apt-get install python3 python3-venv" >&2; \
	exit 1

# The checkout is used in place (a .pth file); `kernelwatch` starts it.
$(VENV)/.runtime: requirements.txt | $(VENV)/bin/python
	@echo "Installing what kernelwatch needs (once) ..."
	@$(PIP) --require-hashes -r requirements.txt
	@$(COMPILE) >/dev/null 2>&1 &  # meanwhile pip installs what comes next, on one core
	@echo "$(CURDIR)" > "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/kernelwatch.pth"
	@printf '#!/bin/sh\nexec "%s/$(PY)" -P -m service.cli "$$@"\n' "$(CURDIR)" > $(KERNELWATCH)
	@chmod +x $(KERNELWATCH)
	@touch $@

# Without torch and Triton, which the tests of FAST do not import.
$(VENV)/.fast: requirements-dev.txt $(VENV)/.runtime
	@echo "Installing what the quick tests need (once) ..."
	@awk '/^[^ #]/ { left_out = /^triton==/ } !left_out' requirements-dev.txt > $(VENV)/fast.txt
	@$(PIP) --require-hashes -r $(VENV)/fast.txt
	@touch $@

$(VENV)/.dev: requirements-dev.txt service/ops/torch_install.py $(VENV)/.runtime
	@echo "Installing what the tests need, torch among it (once; some minutes) ..."
	@$(PIP) --require-hashes -r requirements-dev.txt
	@$(COMPILE) || true
	@$(PY) -m service.ops.torch_install $(PY)
	@touch $@

# The peers' requirements contradict ours, so they get their own environment; without it the table is shorter.
.venv-peers/.made: benchmarks/detect/peers.txt | $(VENV)/bin/python
	@echo "Installing the peers into .venv-peers (once) ..."
	@$(PY) -m venv .venv-peers
	@.venv-peers/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r $< || { \
	  rm -rf .venv-peers; mkdir .venv-peers; echo "The peers could not be installed; the table will not have them." >&2; }
	@touch $@

.venv-lnt/.made: benchmarks/api/lnt.txt | $(VENV)/bin/python
	@echo "Installing LNT into .venv-lnt (once) ..."
	@$(PY) -m venv .venv-lnt
	@.venv-lnt/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --require-hashes -r $< || { \
	  rm -rf .venv-lnt; mkdir .venv-lnt; echo "LNT could not be installed; the table will not have it." >&2; }
	@touch $@
