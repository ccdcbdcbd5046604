# What people type. Each target is a few commands over CMake; nothing here is needed to use CMake
# alone (CMakePresets.json has the same builds and the sanitized ones).
BUILD ?= build
PREFIX ?= /usr/local
CMAKE_FLAGS ?=
DEMO_FLAGS ?= -n 256 -s 1
DEPS ?= build
RESULTS_FLAGS ?=
FETCH ?=
REAL ?= $(or $(QUANTSPEC_REAL),../real)
PYTHON ?= /usr/bin/python3
JOBS := $(shell nproc 2>/dev/null || echo 2)

# One folder for both kinds of build: the tests are added to it or left out, and the library is
# compiled once.
configure = cmake -S . -B $(BUILD) -G Ninja --log-level=NOTICE -DCMAKE_BUILD_TYPE=Release \
  $(CMAKE_FLAGS) -DQUANTSPEC_TESTS=

.PHONY: help deps build demo fetched chat serve build-tests test test-arm benchmarks results format clean install

help: ## list the targets
	@awk -F ': .*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile

deps: ## install the Debian packages that are missing (DEPS=build|test|ci|plots|arm)
	@tools/install_deps.sh $(DEPS)

build: deps ## build the program: build/quantspec
	@$(configure)OFF
	@cmake --build $(BUILD) -j $(JOBS)

# Two tasks, since they are drafted for in two ways: prose by passes that read fewer bits, what is
# copied by looking it up in the prompt.
story = prompts/the-lighthouse-clock.txt
demo: build ## plain and self-speculative decoding, side by side, on a long prompt
	@printf '\n== a story of 8,600 tokens goes on\n\n'
	./$(BUILD)/quantspec generate --compare -f $(story) $(DEMO_FLAGS)
	@printf '\n== its beginning is read again\n\n'
	cat $(story) prompts/read-again.txt | \
	  ./$(BUILD)/quantspec generate --compare -f - $(DEMO_FLAGS) --temp 0

# SmolLM2-135M-Instruct where it is at hand, else the bundled model, which was not made to answer.
# NOTE: asked by the shell, as make looks into a folder once.
talks_with = $$(ls $(REAL)/SmolLM2-135M-Instruct.Q4_1.gguf 2>/dev/null || echo models/pg-24m)

fetched: build
	@[ -z "$(FETCH)" ] || QUANTSPEC_REAL=$(REAL) tools/real_models.sh --no-build

chat: fetched ## talk with a small model; FETCH=1 fetches one that answers, 100 MB, once
	@./$(BUILD)/quantspec chat -m $(talks_with)

serve: fetched ## serve it over HTTP at 127.0.0.1:8080; FETCH=1 as above
	@./$(BUILD)/quantspec serve -m $(talks_with)

build-tests: ## build the program and its tests
	@tools/install_deps.sh test
	@$(configure)ON
	@cmake --build $(BUILD) -j $(JOBS)

# Three at a time: with two, tests that wait leave a fifth of two processors idle.
test: build-tests ## build and run every test
	@ctest --test-dir $(BUILD) -j3 --output-on-failure

ARM_TESTS := cpu_test backend_test kv_cache_test model_test quantspec_test

test-arm: ## cross-compile for 64-bit ARM, run ARM_TESTS (the backend's, the model's) under qemu
	@tools/install_deps.sh arm
	@cmake --preset aarch64 --log-level=WARNING $(CMAKE_FLAGS)
	@cmake --build build-aarch64 -j $(JOBS) --target $(ARM_TESTS)
	@tools/test_arm.sh build-aarch64 $(ARM_TESTS)

benchmarks: build ## build kernel_bench: how fast the kernels are (docs/kernel-bench.md)
	@tools/install_deps.sh benchmarks
	@$(configure)OFF -DQUANTSPEC_BENCHMARKS=ON
	@cmake --build $(BUILD) -j $(JOBS)

# PYTHON: Debian's matplotlib is for Debian's Python, which need not be the first in the path.
results: benchmarks ## measure and draw, into results/ (RESULTS_FLAGS: results/README.md)
	@tools/install_deps.sh plots
	@$(PYTHON) tools/make_results.py --quantspec $(BUILD)/quantspec $(RESULTS_FLAGS)

format: ## format the C++ sources in place
	@tools/check_format.sh --fix

clean: ## remove the build folders
	rm -rf $(BUILD) build-*

install: build ## install the program, its model and the library (PREFIX=/usr/local)
	@cmake --install $(BUILD) --prefix $(PREFIX)
