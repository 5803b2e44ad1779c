# The README's commands. Each sets up .venv once; a second call skips what is done.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart study test check format lock clean
.DELETE_ON_ERROR:

quickstart: .venv/installed
	@$(BIN)/python -m scaling run quickstart

ARGS ?=
STUDY ?= quickstart
study: .venv/installed
	@$(BIN)/python -m scaling run $(STUDY) $(ARGS)

test: .venv/installed
	$(BIN)/python -m pytest $(ARGS)

check: .venv/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell

format: .venv/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/snakefmt Snakefile workflow/rules

# torch is named beside the project so that deepspeed does not bring another build of it;
# deepspeed compiles nothing (DS_BUILD_OPS=0).
.venv/installed: pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than Python 3.11; say PYTHON=python3.11 or newer" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  -c requirements.lock torch -e '.[dev]'
	@touch $@

# Pin what is installed now. A local build of torch (+cpu, +cu130) is pinned as its plain version.
lock: .venv/installed
	( sed -n '/^#/p' requirements.lock; \
	  $(BIN)/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//' ) > requirements.lock.part
	mv requirements.lock.part requirements.lock

clean:
	rm -rf .venv results logs .snakemake
