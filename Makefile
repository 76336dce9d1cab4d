# One line a verb; what each does is in `python3 -m image` and `healthcheck`. Variables may stand on the command line
# (make image GPU_ARCHS='8.6 8.9') or in the environment; one that is empty counts as not set.
.DEFAULT_GOAL := help
.PHONY: image devel selftest bench shell preflight plan test test-image test-gpu lint lock env engine size sbom clean help

export GPU_ARCHS FLASH_ATTN WHEELHOUSE BASE DEBIAN_MIRROR PYPI_INDEX CA_BUNDLE TAG MAX_JOBS TORCH_INDEX
export DYNO_UID := $(shell id -u)

PYTHON ?= python3
IMAGE  ?= dyno
PY     := .venv/bin/python

image: ## build the image (runtime): dyno
	@$(PYTHON) -m image build runtime

devel: ## build the image with nvcc and headers: dyno:...-devel
	@$(PYTHON) -m image build devel

plan: ## say what would be built, from what, and how long it takes
	@$(PYTHON) -m image plan

selftest: env ## run the self-test here on the CPU, without Docker and GPU
	@$(PY) -m healthcheck selftest --device cpu

bench: ## run the benchmarks in the image on the GPU
	@docker compose run --rm bench

shell: ## a shell in the image, with the GPU
	@docker compose run --rm shell

preflight: ## can this host run the image on its GPU
	@$(PYTHON) -m image preflight

test: env ## unit tests, and tests with torch on the CPU
	@$(PY) -m pytest tests/unit tests/cpu

test-image: env image devel ## build both images and test them
	@DYNO_IMAGE="$$($(PYTHON) -m image plan runtime --name)" DYNO_DEVEL_IMAGE="$$($(PYTHON) -m image plan devel --name)" $(PY) -m pytest tests/image

test-gpu: env ## tests that need a GPU
	@$(PY) -m pytest tests/gpu -m gpu

lint: env ## ruff and mypy
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(PY) -m mypy

lock: ## resolve requirements/*.in to *.lock
	@$(PYTHON) -m image lock

env: ## make .venv for tests and self-test (TORCH_INDEX=https://download.pytorch.org/whl/cpu: small download)
	@$(PYTHON) -m image env --torch

engine: ## find a Docker engine; as root on Debian 12 or 13 install and start it
	@$(PYTHON) -m image engine

size: ## where the gigabytes of IMAGE are
	@$(PYTHON) -m image size $(IMAGE)

sbom: ## bill of materials of IMAGE (CycloneDX)
	@$(PYTHON) -m image sbom $(IMAGE)

clean: ## remove this project's images
	@$(PYTHON) -m image clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: GPU_ARCHS FLASH_ATTN WHEELHOUSE BASE DEBIAN_MIRROR PYPI_INDEX CA_BUNDLE TAG MAX_JOBS TORCH_INDEX IMAGE"
	@echo "           what each means: $(PYTHON) -m image build --help"
