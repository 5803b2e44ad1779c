# The commands of the README. Each sets up .venv first; a second call skips what is done.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
unexport PYTHONDONTWRITEBYTECODE # else a hundred processes each compile all they import

.PHONY: quickstart study test test-fast test-torch soak check gpu-check docs site licences format lock clean
.DELETE_ON_ERROR:

quickstart: $(VENV)/installed
	@$(BIN)/python -m scaling run quickstart

ARGS ?=
STUDY ?= quickstart
study: $(VENV)/installed
	@$(BIN)/python -m scaling run $(STUDY) $(ARGS)

# The whole suite as seven pytests at once: tests that start ranks, tests that wait for Slurm, those
# that start ranks there, tests that start Snakemake, those that start ranks by it, and all others in two
# halves, those of FIRST_HALF and the rest, which take the processor for as long as each other. With
# ARGS, one pytest with these arguments.
FIRST_HALF := tests/analyse tests/check tests/launch tests/predict
PLAIN := not ranks and not slurm and not snakemake
test: $(VENV)/installed
ifeq ($(strip $(ARGS)),)
	@logs=$$(mktemp -d); trap 'rm -rf "$$logs"' EXIT; \
	marked() { grep -rl --include='test_*.py' "mark\.$$1" tests | sort; }; \
	part() { name=$$1; shift; "$$@" -o cache_dir=.pytest_cache/$$name > "$$logs/$$name" 2>&1; }; \
	part ranks $(BIN)/python -m pytest -m "ranks and not slurm and not snakemake" \
	  $$(grep -L "mark\.slurm\|mark\.snakemake" $$(marked ranks)) & ranks=$$!; \
	part Slurm $(BIN)/python -m pytest -m "slurm and not ranks" tests/slurm & slurm=$$!; \
	part trained $(BIN)/python -m pytest -m "slurm and ranks" tests/slurm & trained=$$!; \
	part Snakemake $(BIN)/python -m pytest -m "snakemake and not slurm and not ranks" \
	  $$(marked snakemake) & snakemake=$$!; \
	part studies $(BIN)/python -m pytest -m "snakemake and ranks and not slurm" \
	  $$(grep -l "mark\.ranks" $$(marked snakemake)) & studies=$$!; \
	part none $(BIN)/python -m pytest -m "$(PLAIN)" $(FIRST_HALF) & none=$$!; \
	$(BIN)/python -m pytest -m "$(PLAIN)" $(addprefix --ignore=,$(FIRST_HALF)); code=$$?; \
	for part in "none $$none" "ranks $$ranks" "Snakemake $$snakemake" "studies $$studies" \
	  "Slurm $$slurm" "trained $$trained"; do \
	  set -- $$part; wait $$2 || code=$$?; echo "Meanwhile, what starts $$1:"; cat "$$logs/$$1"; \
	done; exit $$code
else
	$(BIN)/python -m pytest $(ARGS)
endif

# Tests without ranks, Slurm, a browser, Snakemake or long computations, as two pytests at once. Run it
# while you work. With ARGS, one pytest with these arguments.
FAST := $(PLAIN) and not browser and not slow
test-fast: $(VENV)/installed
ifeq ($(strip $(ARGS)),)
	@log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	$(BIN)/python -m pytest -m "$(FAST)" -o cache_dir=.pytest_cache/half $(FIRST_HALF) > "$$log" 2>&1 & \
	half=$$!; \
	$(BIN)/python -m pytest -m "$(FAST)" $(addprefix --ignore=,$(FIRST_HALF)); code=$$?; \
	wait $$half || code=$$?; echo "Meanwhile, the other half:"; cat "$$log"; exit $$code
else
	$(BIN)/python -m pytest -m "$(FAST)" $(ARGS)
endif

# The tests of training and of `scaling check` on an older torch, which GPU machines bring, in a venv of
# its own. VERSION=2.12.0 asks for another.
VERSION ?= 2.11.0
OTHER := .venv/torch-$(VERSION)
test-torch: $(OTHER).lock
	$(MAKE) VENV=$(OTHER) TORCH=$(OTHER).lock ARGS="tests/train tests/check $(ARGS)" test

$(OTHER).lock:
	@mkdir -p .venv
	@echo "torch==$(VERSION)" > $@

# A night on the Slurm of the tests: 1,000 points while ranks, launchers, snakemake, nodes and the
# disk fail. SOAK="--points 200 --seed 3" changes it.
SOAK ?=
soak: $(VENV)/installed
	$(BIN)/python -m tests.slurm.soak $(SOAK)

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m tests.prose

# Draw the tables of a study and what they need, docs/tables.svg.
docs: $(VENV)/installed
	$(BIN)/python docs/draw_tables.py

# Build the documentation as a site in site/. A broken link ends it.
site: $(VENV)/installed docs
	$(BIN)/python -m mkdocs build --strict --quiet

# List every installed package with its licence and its origin.
licences: $(VENV)/installed
	@$(BIN)/pip-licenses --format=markdown --with-urls --order=license

# Collect what a machine with a GPU and without network needs, in gpu-check/.
gpu-check: $(VENV)/installed
	DS_BUILD_OPS=0 $(BIN)/python benchmarks/gpu/collect.py
	@echo "There, in a copy of this folder: sh benchmarks/gpu/run.sh FOLDER"

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/snakefmt Snakefile workflow/rules

# Install what is locked, checked by its hashes; then torch, of which a machine may bring its own build
# (TORCH=torch-cuda13.lock: the build for CUDA 13, checked by its hashes); then the project, for which
# nothing is left to fetch. deepspeed compiles nothing (DS_BUILD_OPS=0).
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
TORCH ?= torch.lock
$(VENV)/installed: pyproject.toml requirements.lock $(TORCH)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; say PYTHON=python3.11 or newer" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	DS_BUILD_OPS=0 $(PIP) --require-hashes --no-deps -r requirements.lock
	$(PIP) $(if $(findstring cuda,$(TORCH)),--require-hashes --no-deps) -r $(TORCH)
	$(PIP) --no-build-isolation -e workflow/executor -e '.[dev]'
	@touch $@

# Pin what is installed now, with the hashes of all its published files. torch goes into a file of its
# own: a local build (+cpu, +cu130) as its plain version, without its dependencies.
lock: $(VENV)/installed
	$(PYTHON) -m venv .venv/lock
	.venv/lock/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/python -m pip freeze --all --exclude-editable | sed 's/+[a-z0-9.]*$$//' > .venv/lock/all
	( sed -n '/^#/p' torch.lock; grep '^torch==' .venv/lock/all ) > .venv/lock/torch
	sed -n 's/^ *"\(liger-kernel[^"]*\)".*/\1/p' pyproject.toml > .venv/lock/kernels
	grep -v '^torch==\|^triton==\|^cuda-\|^nvidia-.*-cu\|^pip==' .venv/lock/all \
	  | .venv/lock/bin/uv pip compile --quiet --no-deps --generate-hashes --no-annotate --no-header \
	      --universal --python-version 3.11 - > .venv/lock/hashed
	( sed -n '/^#/p' requirements.lock; cat .venv/lock/hashed ) > .venv/lock/rest
	grep -o '^[a-zA-Z0-9_.-]*==[^ ;]*' .venv/lock/hashed > .venv/lock/pinned
	.venv/lock/bin/uv pip compile --quiet --generate-hashes --no-annotate --no-header \
	  --universal --python-version 3.11 -c .venv/lock/pinned \
	  $$(sed 's/==.*//; s/^/--no-emit-package /' .venv/lock/pinned) .venv/lock/torch .venv/lock/kernels \
	  | grep -v '^#' > .venv/lock/cuda13
	( sed -n '/^#/p' torch-cuda13.lock; cat .venv/lock/cuda13 ) > .venv/lock/torch13
	mv .venv/lock/torch13 torch-cuda13.lock
	mv .venv/lock/rest requirements.lock
	mv .venv/lock/torch torch.lock

clean:
	rm -rf .venv results logs .snakemake
