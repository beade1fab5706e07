#!/bin/sh
# Install an archive in a clean environment and try it there: sh tests/packaging_round.sh dist/NAME (PYTHON names an interpreter).
set -eu
archive=$(realpath "$1")
round=$(realpath "$(dirname "$0")/packaging_round.py")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"
unset PYTHONPATH
"${PYTHON:-python3}" -m venv clean
clean/bin/python -m pip install --quiet --disable-pip-version-check "$archive" mypy
clean/bin/python "$round"
clean/bin/bgmiv --version
# The types of what a user calls are known: an untyped package would reveal Any, or an error.
clean/bin/mypy user_script.py >types.txt
grep -q '"bgmiv.baselines.tsls.TSLS"' types.txt
grep -q '"bgmiv.effects.Interval"' types.txt || { cat types.txt; exit 1; }
grep -q '"bgmiv.estimators.base.IVEstimator"' types.txt
echo "$(basename "$archive"): installed, fitted, reported, saved, opened, typed"
