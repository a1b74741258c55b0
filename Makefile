# Two commands: `make report` (all notebooks on the example case, into reports/) and `make test`. Both set everything up first.
# A GPU host keeps its own torch: make setup CONSTRAINTS=

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= -c constraints/cpu.txt
BIN := $(VENV)/bin
CASE ?= data/example/case.toml
export HF_HUB_OFFLINE := 1

.PHONY: report test lab live live-all example bench faults pictures lint setup target oracles wheels clean

report: setup target
	$(BIN)/eaglelab report $(CASE)

# Files of tests at a time; 2 halves the time, and needs a machine that does nothing else.
TEST_JOBS ?= 0
test: setup target oracles wheels
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile

# JupyterLab on the example case; its kernel is this environment's own. notebooks/.lab: outputs out of sight stay, no pop-ups.
lab: setup target
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) --ServerApp.root_dir=. --LabApp.app_settings_dir=notebooks/.lab notebooks/00_start_here.ipynb

bench: setup
	$(BIN)/python benchmarks/fingerprint.py
	$(BIN)/python benchmarks/formats.py
	$(BIN)/python benchmarks/replay.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/loop.py
	$(BIN)/python benchmarks/trace.py

# Faults put into healthy cases, all worlds and kinds, into docs/faults and the README's table: about two hours of one core. It goes on where it was stopped;
# `make faults FROZEN=COMMIT` says at which commit rules and thresholds were frozen before the held-out worlds were run.
FAULTS := .cache/faults/run
FROZEN ?= $(shell git rev-parse --short=10 HEAD)
faults: setup target
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/faults/run.py --pairs 12 --out $(FAULTS)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/faults/run.py --pairs 12 --out $(FAULTS) --worlds held-out --frozen $(FROZEN)
	$(BIN)/python benchmarks/faults/score.py $(FAULTS)/cases.csv --out docs/faults --readme README.md --frozen $(FROZEN)

# The pictures of the README and the documents, from the example's pages; needs chromium. Pages made from the code: python -m docs.make_reference
pictures: setup target
	$(BIN)/python docs/make_pictures.py

lint: setup
	$(BIN)/ruff check . && $(BIN)/ruff format --check .

# The environment: made once, made again when the list of dependencies changes.
setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints/cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit("python3 3.11 or newer is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@echo "Setting up $(VENV), once: a few minutes, 2 GB of disk. pip says nothing meanwhile."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check $(CONSTRAINTS) -e '.[notebooks,example,dev]'
	touch $@

# The example's target: about 98 MB of downloads, 270 MB on disk. Without it the reports use the sketch.
target: setup
	@$(BIN)/python data/example/fetch_target.py || echo "The example's target could not be fetched; going on with its sketch."

# The trainers' own packages, for the tests that run them: in a folder of their own, so that nothing else sees them.
oracles: setup
	@$(MAKE) --no-print-directory $(VENV)/oracles/.ready || echo "The trainers' packages could not be installed; their tests skip."

$(VENV)/oracles/.ready: tests/oracles/requirements.txt $(VENV)/.ready
	rm -rf $(VENV)/oracles
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/oracles -r $<
	touch $@

# Real engines on the CPU: serve the example and hold what they count against the replay. `live` is vLLM alone, `live-all` SGLang too.
LIVE := .live
live: setup target $(LIVE)/vllm/.ready
	$(BIN)/python engines_cpu/live.py

live-all: setup target $(LIVE)/vllm/.ready $(LIVE)/sglang/.ready
	$(BIN)/python engines_cpu/live.py --all

# The engines live in environments of their own. torchvision of the package index is a CUDA build that does not load beside a CPU torch.
$(LIVE)/vllm/.ready: engines_cpu/requirements/vllm.txt
	@$(ENOUGH_DISK)
	rm -rf $(LIVE)/vllm
	$(PYTHON) -m venv $(LIVE)/vllm
	$(LIVE)/vllm/bin/pip install --quiet --disable-pip-version-check -r $<
	$(LIVE)/vllm/bin/pip uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

$(LIVE)/sglang/.ready: engines_cpu/requirements/sglang.txt engines_cpu/requirements/sglang-no-deps.txt
	@$(ENOUGH_DISK)
	rm -rf $(LIVE)/sglang
	$(PYTHON) -m venv $(LIVE)/sglang
	$(LIVE)/sglang/bin/pip install --quiet --disable-pip-version-check -r $<
	$(LIVE)/sglang/bin/pip install --quiet --disable-pip-version-check --no-deps -r engines_cpu/requirements/sglang-no-deps.txt
	touch $@

DISK_GB := 12
ENOUGH_DISK = $(PYTHON) -c 'import shutil, sys; free = shutil.disk_usage(".").free / 1e9; \
	sys.exit(f"an engine needs $(DISK_GB) GB of free disk to be installed, {free:.1f} GB are free here") if free < $(DISK_GB) else None'

# SGLang's published wheels, about 103 MB, read as archives by the tests of the convention table: nothing of them is installed or run.
wheels: setup
	@$(MAKE) --no-print-directory .cache/engines/.ready || echo "Some of SGLang's wheels could not be fetched; the tests that read them skip."

.cache/engines/.ready: tests/engines/wheels.txt
	mkdir -p $(@D)
	lacking=; for version in $$(cat $<); do \
	  ls $(@D)/sglang-$$version-*.whl >/dev/null 2>&1 || $(BIN)/pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
	    --python-version 3.11 --platform manylinux_2_34_x86_64 --dest $(@D) sglang==$$version || lacking="$$lacking $$version"; done; \
	test -z "$$lacking"
	touch $@

# Rebuild the example from nothing: the target's answers, their states, the drafter, the shipped files, the recordings. About two hours on two cores.
example: setup target $(LIVE)/vllm/.ready $(LIVE)/sglang/.ready
	$(LIVE)/vllm/bin/python data/example/recipe/answers.py --target data/example/target --out $(LIVE)/example/answers.jsonl
	$(BIN)/python data/example/recipe/states.py --target data/example/target --answers $(LIVE)/example/answers.jsonl --out $(LIVE)/example/dump
	$(BIN)/python data/example/recipe/train.py --target data/example/target --dump $(LIVE)/example/dump --out $(LIVE)/example/drafter
	$(BIN)/python data/example/recipe/ship.py --target data/example/target --dump $(LIVE)/example/dump --drafter $(LIVE)/example/drafter --out data/example
	rm -f data/example/engine/*.jsonl data/example/engine/*.log data/example/engine/*.gz data/example/engine/*.csv
	$(BIN)/python engines_cpu/live.py --all --record
	$(BIN)/python engines_cpu/trace.py vllm-chain
	$(BIN)/python engines_cpu/sweep.py

clean:
	rm -rf $(VENV) $(LIVE) reports/*/ reports/index.html
