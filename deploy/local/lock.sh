#!/bin/sh
# Resolve pyproject.toml into requirements.lock and requirements-dev.lock, for all supported Pythons at once. uv gets a
# virtual environment of its own, since it is needed for nothing else.
set -eu

tool=build/lock-venv
[ -x "$tool/bin/uv" ] || { "${PYTHON:-python3}" -m venv "$tool" && "$tool/bin/python" -m pip install --quiet --disable-pip-version-check uv; }
options="--universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet"
# shellcheck disable=SC2086 # a list of options
"$tool/bin/uv" pip compile $options pyproject.toml -o requirements.lock
# shellcheck disable=SC2086
"$tool/bin/uv" pip compile $options --group dev pyproject.toml -o requirements-dev.lock
