# Two commands do everything on a machine with Python and make: `make demo` and `make test`.
# Both install what they need, at pinned versions, into .venv; nothing outside this folder is touched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(BIN)/python -m pip install --quiet
CONTRACTS := 3.6.0 4.8.5# versions of `datasets` that the contract tests run beside the pinned one
PYTEST_ARGS ?=
BENCH_ARGS ?=
LEARN_ARGS ?=

.PHONY: demo docs learn test test-browser test-tools slow check fuzz gen bench bench-loaders clean
.DELETE_ON_ERROR:

demo: $(VENV)/light
	rm -rf demo
	$(BIN)/reasonknee phantom demo/cohort --patients 6 --shape 80,192,192
	$(BIN)/reasonknee build demo/cohort demo/rajpurkarlab/3DReasonKnee
	cd demo && ../$(BIN)/python ../examples/first_look.py
	cd demo && ../$(BIN)/reasonknee baselines rajpurkarlab/3DReasonKnee guesses --names image_mean,constant_box
	cd demo && ../$(BIN)/python ../examples/first_score.py

test: check $(CONTRACTS:%=$(VENV)-datasets-%/ready)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(PYTEST_ARGS)

# Everything that needs a real browser, and no test may be skipped for want of it. Chromium comes from Debian's packages.
test-browser: $(VENV)/ready
	command -v chromedriver >/dev/null || apt-get install -y --no-install-recommends chromium chromium-driver
	REASONKNEE_BROWSER=required $(BIN)/python -m pytest -m 'browser or not browser' $(wildcard tests/test_*_browser.py) $(PYTEST_ARGS)

# Programs of others, each in an environment of its own: nnU-Net's check of the dataset that is exported to it, ms-swift's
# reader of the rows that are, and the site. Wheel and sdist are installed into empty ones.
test-tools: $(VENV)/ready .venv-nnunet/ready .venv-swift/ready .venv-docs/ready
	$(BIN)/python -m pytest -m tools $(PYTEST_ARGS)

# The site, with nothing from elsewhere; a broken link fails. `python3 -m http.server -d build/site` shows it.
docs: .venv-docs/ready
	.venv-docs/bin/python docs/site/stage.py build/site-sources
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict -f build/site-sources/mkdocs.yml -d ../site
	@echo "the site: build/site/index.html"

.venv-docs/ready: docs/site/requirements.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet -r docs/site/requirements.txt
	touch $@

.venv-nnunet/ready:
	$(PYTHON) -m venv .venv-nnunet
	.venv-nnunet/bin/python -m pip install --quiet torch==2.13.0
	echo torch==2.13.0 > .venv-nnunet/pins.txt
	.venv-nnunet/bin/python -m pip install --quiet -c .venv-nnunet/pins.txt nnunetv2==2.8.1
	touch $@

.venv-swift/ready:
	$(PYTHON) -m venv .venv-swift
	.venv-swift/bin/python -m pip install --quiet torch==2.13.0
	echo torch==2.13.0 > .venv-swift/pins.txt
	.venv-swift/bin/python -m pip install --quiet -c .venv-swift/pins.txt ms-swift==4.6.0
	touch $@

# The long ones: properties by the thousand, every bad release, hostile files, a build killed at every file operation.
slow: $(VENV)/ready $(CONTRACTS:%=$(VENV)-datasets-%/ready) fuzz
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal -m slow $(PYTEST_ARGS)

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/types && mkdir -p build/types  # schema/ and validation/ where they are installed, so that mypy finds them
	cp -r reasonknee build/types/ && cp -r schema validation build/types/reasonknee/
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p reasonknee

# Measured, never asserted; run it on a quiet machine. The peers get an environment of their own.
# A part again: make bench-loaders BENCH_ARGS="--merge --parts once,limit --only Ours,MonaiPersistent --rounds 5"
bench-loaders: .venv-bench/ready
	.venv-bench/bin/python benchmarks/loaders.py --data build/bench --out docs/bench/loaders.json --page docs/benchmarks.md $(BENCH_ARGS)

bench: bench-loaders
	.venv-bench/bin/python benchmarks/build.py --out docs/bench/build.json --page docs/scale.md
	.venv-bench/bin/python benchmarks/validate.py --out docs/bench/validate.json
	.venv-bench/bin/python benchmarks/check_volume.py --out docs/bench/check_volume.json
	.venv-bench/bin/python benchmarks/scoring.py
	.venv-bench/bin/python benchmarks/coverage.py --out docs/bench/coverage.json
	.venv-bench/bin/python benchmarks/reader.py --out docs/bench/reader.json --page docs/phantom.md
	.venv-bench/bin/python benchmarks/evidence.py --out docs/bench/evidence.json --page docs/phantom.md --datasheet reasonknee/release/datasheet.md

# What a small model learns on synthetic knees: half an hour on two cores. A run that was ended goes on.
learn: $(VENV)/ready
	$(BIN)/python benchmarks/learn.py $(LEARN_ARGS)

.venv-bench/ready: constraints.txt pyproject.toml benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet -c constraints.txt torch==2.13.0
	.venv-bench/bin/python -m pip install --quiet -c constraints.txt -e '.[torch,construct,report,test]'
	grep -E '^(torch|numpy|datasets|pyarrow|nibabel|fsspec|huggingface_hub|scipy|pandas)==' constraints.txt > .venv-bench/pins.txt
	.venv-bench/bin/python -m pip install --quiet -c .venv-bench/pins.txt -r benchmarks/requirements.txt
	touch $@

# Longer than the suite does: hostile files by the thousand, and a build killed at every file operation.
fuzz: $(VENV)/ready
	REASONKNEE_FUZZ=$${REASONKNEE_FUZZ:-20000} $(BIN)/python -m pytest tests/test_fuzz.py
	REASONKNEE_KILLS=$${REASONKNEE_KILLS:-1000} $(BIN)/python -m pytest tests/test_build_survives.py -k killed

gen: $(VENV)/ready
	$(BIN)/python -m reasonknee.generate .

$(VENV)/light: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -e '.[report]'
	touch $@

$(VENV)/ready: $(VENV)/light
	$(PIP) -c constraints.txt torch==2.13.0  # first and exactly: a looser range may fetch gigabytes of CUDA packages
	$(PIP) -c constraints.txt -e '.[torch,construct,cluster,report,models,grammar,train,sgmri,frameworks,test]'
	touch $@

# The same pins, less those that an older `datasets` decides itself.
$(VENV)-datasets-%/ready: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-datasets-$*
	grep -vE '^(datasets|dill|fsspec|httpx.*|httpcore.*|huggingface_hub|multiprocess|torch)==' constraints.txt > $(VENV)-datasets-$*/constraints.txt
	PIP_DISABLE_PIP_VERSION_CHECK=1 $(VENV)-datasets-$*/bin/python -m pip install --quiet -c $(VENV)-datasets-$*/constraints.txt datasets==$* -e .
	touch $@

clean:
	rm -rf $(VENV) $(CONTRACTS:%=$(VENV)-datasets-%) build demo .venv-docs
