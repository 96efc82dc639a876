# SPDX-License-Identifier: Apache-2.0
# Short names for the commands that build, test and show Isthmus. `make help` lists them.

SHELL := /bin/bash
JOBS ?= $(shell nproc)
RELEASE := build/release
export ISTHMUS_DEPS_DIR ?= $(CURDIR)/third_party
PYTHON := $(ISTHMUS_DEPS_DIR)/venv/bin/python
configure = mkdir -p build && \
  cmake --preset $(1) -DISTHMUS_DEPS_DIR=$(ISTHMUS_DEPS_DIR) > build/$(1).log 2>&1 \
  || { cat build/$(1).log; exit 1; }

.PHONY: help
help:  ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: build  ## start a prefill worker, a decode worker and a router, chat once, show what crossed, stop
	@tools/demo.sh

# Where the tests find the package; `pip install .` does the same for everybody.
PYTHON_SITE := build/python-site
.PHONY: python
python: bootstrap  ## build the Python package to build/python-site
	@mkdir -p build
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-index --no-build-isolation --no-deps \
	  --upgrade --target $(PYTHON_SITE) . > build/python.log 2>&1 || { cat build/python.log; exit 1; }

.PHONY: test
test: build python  ## build and run all tests, those without engines under sanitizers too, and fuzz briefly
	@echo "test: building build/asan and build/fuzz"
	@$(call configure,asan)
	@ninja -C build/asan -j $(JOBS)
	@$(call configure,fuzz)
	@ninja -C build/fuzz -j $(JOBS) fuzzers
	@$(PYTHON) tools/run_tests.py --jobs $(JOBS)

.PHONY: faults
faults: build  ## every fault at every state of the handoff, on real processes; writes docs/faults.md
	@$(PYTHON) -m pytest -q -p no:cacheprovider tests/matrix/test_matrix.py --full --page docs/faults.md

SOAK_SECONDS ?= 600
.PHONY: soak
soak: build  ## SOAK_SECONDS (600) of mixed requests under faults of all kinds; all at rest at its end
	@$(PYTHON) -m pytest -q -s -p no:cacheprovider tests/matrix/test_soak.py --soak-seconds $(SOAK_SECONDS)

SOAK_SERVING_SECONDS ?= 1800
.PHONY: soak-serving
soak-serving: build  ## the same with real engines, SOAK_SERVING_SECONDS (1800); every answer has its bytes
	@$(PYTHON) -m pytest -q -s -p no:cacheprovider tests/integration/test_soak_serving.py \
	  --soak-serving-seconds $(SOAK_SERVING_SECONDS)

OVERLOAD_SECONDS ?= 30
.PHONY: overload
overload: build  ## five times what a worker and a pair can do, OVERLOAD_SECONDS (30) at each rate
	@$(PYTHON) -m pytest -q -p no:cacheprovider tests/integration/test_overload.py \
	  --overload-seconds $(OVERLOAD_SECONDS)

.PHONY: build
build: configure  ## build everything to build/release, the program is build/release/isthmus
	@echo "build: building $(RELEASE)"
	@ninja -C $(RELEASE) -j $(JOBS)

.PHONY: configure
configure: bootstrap
	@$(call configure,release)

.PHONY: bootstrap
bootstrap:  ## get Debian packages, pinned engines and model, test tools (keeps what is there)
	@tools/bootstrap.sh

.PHONY: check
check: build format layers tidy headers lint  ## all static checks: format, layers, tidy, headers, lint
	@echo "check: all good"

.PHONY: format
format:  ## check the layout of all C++ files (make reformat repairs it)
	@tools/sources.sh | xargs -0 clang-format-19 --dry-run -Werror && echo "format: all good"

.PHONY: reformat
reformat:  ## lay out all C++ files as .clang-format says
	@tools/sources.sh | xargs -0 clang-format-19 -i

.PHONY: layers
layers:  ## check includes against src/layers.toml
	@python3 tools/check_layers.py

.PHONY: tidy
tidy:  ## check sizes, banned names and licence lines; the checkers' own tests too
	@python3 -m unittest discover --quiet --start-directory tools --pattern '*_test.py'
	@python3 -m unittest discover --quiet --start-directory bench --pattern '*_test.py'
	@python3 -m unittest discover --quiet --start-directory bench/peers --pattern '*_test.py'
	@python3 tools/tidy.py

.PHONY: headers
headers: configure  ## compile every header alone
	@ninja -C $(RELEASE) -j $(JOBS) --quiet headers && echo "headers: all good"

.PHONY: lint
lint: build  ## run clang-tidy on what changed since its last clean run
	@python3 tools/lint.py --build $(RELEASE) --jobs $(JOBS)

.PHONY: asan
asan: configure  ## unit, contract and fault tests under ASan and UBSan, without the engines
	@$(call configure,asan)
	@ninja -C build/asan -j $(JOBS)
	@$(PYTHON) tools/run_tests.py --jobs $(JOBS) --only asan

.PHONY: fuzz
fuzz: configure  ## fuzz every decoder, FUZZ_SECONDS each (600 unless told)
	@$(call configure,fuzz)
	@ninja -C build/fuzz -j $(JOBS) fuzzers
	@FUZZ_SECONDS=$${FUZZ_SECONDS:-600} python3 tools/fuzz.py --jobs $(JOBS)

.PHONY: tsan
tsan: configure  ## unit, contract and fault tests under ThreadSanitizer, without the engines
	@$(call configure,tsan)
	@ninja -C build/tsan -j $(JOBS)
	@$(PYTHON) tools/run_tests.py --jobs $(JOBS) --only tsan

.PHONY: gcc
gcc: bootstrap  ## build everything with GCC 12 to build/gcc, and its unit, contract and fault tests
	@$(call configure,gcc)
	@ninja -C build/gcc -j $(JOBS)
	@$(PYTHON) tools/run_tests.py --jobs $(JOBS) --only gcc

.PHONY: mutations
mutations: bootstrap  ## plant bugs in the handoff's cores, see them found; writes docs/mutations.md
	@$(call configure,mutations)
	@ninja -C build/mutations -j $(JOBS) mutations
	@build/mutations/mutations > build/mutations/page.md
	@cp build/mutations/page.md docs/mutations.md

.PHONY: simulation
simulation: build  ## which events met which states of the handoff's cores; writes docs/simulation.md
	@$(RELEASE)/isthmus sim handoff --seeds 1000 --jobs $(JOBS) --coverage > build/simulation.md
	@cp build/simulation.md docs/simulation.md

# What a build has measured stays in build/matrix, so that a run that was stopped goes on.
.PHONY: matrix
matrix: build  ## KL of every pair of KV forms to its decoder alone, an hour or two; writes docs and records
	@tools/matrix.sh $(RELEASE)/tests/crossing/crossing_test $(JOBS)

.PHONY: pairs
pairs: build  ## every KV storage to every other over ranks, heads, blocks, tokens; half an hour at most
	@python3 tools/pairs.py --jobs $(JOBS) $(RELEASE)/src/transform/transform_test

.PHONY: numerics
numerics: build  ## every f32 in every format on every instruction set; the golden digests anew by numpy
	@test -d build/numerics || python3 -m venv build/numerics
	@build/numerics/bin/pip install --quiet --require-hashes --only-binary :all: \
	  -r tests/numerics/requirements.txt
	@build/numerics/bin/python tests/numerics/golden.py --check spec/vectors/kv/numerics.txt
	@$(RELEASE)/src/transform/transform_test --gtest_also_run_disabled_tests --gtest_filter='*EveryF32*'

BENCH_MIB ?= 256
.PHONY: bench
bench: build  ## measure the crossing, write docs/performance.md
	@mkdir -p build/bench
	@rm -f build/bench/*.jsonl
	@$(RELEASE)/isthmus bench handoff --size $(BENCH_MIB) --json > build/bench/1-handoff.jsonl
	@$(RELEASE)/isthmus bench kv --size $(BENCH_MIB) --json > build/bench/2-kv.jsonl
	@$(RELEASE)/isthmus bench plan --json > build/bench/2-plan.jsonl
	@python3 bench/ttft.py $(RELEASE)/isthmus > build/bench/3-ttft.jsonl
	@python3 bench/peers/peers.py $(RELEASE)/isthmus > build/bench/4-peers.jsonl
	@python3 bench/peers/conversions.py $(RELEASE)/isthmus > build/bench/5-conversions.jsonl
	@python3 bench/peers/serving.py $(RELEASE)/isthmus \
	  --model $(firstword $(wildcard $(ISTHMUS_DEPS_DIR)/models/*.gguf)) > build/bench/6-serving.jsonl
	@python3 bench/page.py docs/performance.md build/bench/*.jsonl

.PHONY: serving
serving: build  ## a worker and a pair under load up to five times what they can do; writes docs/serving.md
	@test -d build/serving || python3 -m venv build/serving
	@build/serving/bin/pip install --quiet --require-hashes --only-binary :all: -r bench/requirements.txt
	@build/serving/bin/python bench/serve.py $(RELEASE)/isthmus docs/serving.md \
	  --model $(firstword $(wildcard $(ISTHMUS_DEPS_DIR)/models/*.gguf))

.PHONY: clean
clean:  ## remove what was built (third_party/ stays)
	rm -rf build
