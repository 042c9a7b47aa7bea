# A thin frame over tools/*.sh; each script says what it does and can be run by itself.
# `make help` lists the targets. ARGS goes to the program: make serve ARGS="--port 8000".
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help build serve test gpu-bundle sanitize fuzz format tidy clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 18

build: ## what is missing, then build/release/attune and the model
	@tools/setup.sh build
	@tools/build.sh release

serve: build ## build, then serve the model on 127.0.0.1:30000
	@exec build/release/attune serve $(ARGS)

test: ## build, then every test that this machine can run
	@tools/setup.sh build test
	@tools/build.sh release all
	@tools/test.sh

gpu-bundle: ## build/gpu-bundle: a folder with which a bare machine with a GPU tests itself (needs nvcc)
	@tools/setup.sh build
	@tools/gpu_bundle.sh

sanitize: ## unit tests under ASan+UBSan, then TSan
	@tools/setup.sh build test
	@tools/sanitize.sh

fuzz: ## every fuzzer for FUZZ_SECONDS (60)
	@tools/setup.sh build fuzz
	@tools/fuzz.sh

format: ## clang-format over the sources
	@tools/setup.sh format
	@tools/format.sh fix

tidy: ## clang-tidy: names and bug patterns
	@tools/setup.sh build tidy
	@tools/tidy.sh

clean: ## remove what was built; downloads stay (make clean ALL=1 removes them too)
	@tools/clean.sh $(ALL)
