# Each target does all of its own set-up, in .venv, and says what it installs.
.PHONY: run test check check-style check-imports check-mypy check-pyright check-dashboard check-docs bench docs docs-serve reference format clean help

PY := .venv/bin/python
# The tests start thousands of Python processes: compiled modules are kept, outside the source tree.
export PYTHONDONTWRITEBYTECODE :=
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/pycache

help:
	@echo "make run     the demo: one process, an embedded SQLite file, a live view; Ctrl-C to stop"
	@echo "make test    every test, with real servers"
	@echo "make check   ruff, pyright, mypy, import-linter, types of the dashboard, links of the documentation"
	@echo "make bench   figures with the storage engine's own limit beside them; STORE=sqlite|postgres|redis|URL"
	@echo "make docs    the documentation as a site in site/; make docs-serve also serves it on port 8000"

run:
	@scripts/setup run
	@# In a process group of its own: Ctrl-C is for the demo, which drains and ends well, not for make.
	@$(PY) scripts/foreground.py .venv/bin/headrace dev examples.demo:app --with examples.demo:produce $(ARGS)

test:
	@scripts/setup test
	@# Four processes on two cores: many tests wait for a lease, a server or another process.
	@$(PY) -m pytest -n 4 --dist worksteal $(ARGS)

check:
	@scripts/setup check
	@# Two at once: the type checkers take most of the time, and each of them uses one core.
	@$(MAKE) --no-print-directory -j 2 --output-sync check-pyright check-mypy check-style check-imports check-dashboard check-docs

check-style:
	.venv/bin/ruff check src tests examples scripts benchmarks
	.venv/bin/ruff format --check src tests examples scripts benchmarks
check-imports:
	.venv/bin/lint-imports
check-mypy:
	.venv/bin/mypy
check-pyright:
	.venv/bin/pyright
check-dashboard:
	$(PY) scripts/build_dashboard.py --check
check-docs:
	$(PY) scripts/build_site.py --into .venv/site

STORE ?= sqlite
bench:
	@scripts/setup test
	@$(PY) -m benchmarks --store $(STORE) $(ARGS)

docs:
	@scripts/setup docs
	@$(PY) scripts/build_site.py --into site

docs-serve: docs
	@echo "The site is on http://127.0.0.1:8000/ until Ctrl-C."
	@$(PY) -m http.server 8000 --bind 127.0.0.1 --directory site

# The pages of the reference that are made from the code.
reference:
	@scripts/setup check
	@for script in option_tables setting_table command_reference python_reference; do $(PY) scripts/$$script.py || exit 1; done

format:
	@scripts/setup check
	.venv/bin/ruff check --fix src tests examples scripts benchmarks
	.venv/bin/ruff format src tests examples scripts benchmarks

clean:
	rm -rf .venv site dashboard/node_modules src/headrace/server/page/dashboard .pytest_cache .mypy_cache .ruff_cache .hypothesis
