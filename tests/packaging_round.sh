#!/bin/sh
# Install each archive in a clean environment and try it there: sh tests/packaging_round.sh UV PYTHON dist/*
set -eu
uv=$(realpath "$1") python=$(realpath -s "$2")
shift 2
here=$(realpath "$(dirname "$0")")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
unset PYTHONPATH
# What the first environment compiles, the second finds.
export NPROC=1 BGMIV_COMPILATION_CACHE="$place/compiled" XLA_FLAGS="--xla_cpu_use_fusion_emitters=false"
for archive in "$@"; do
    clean=$place/$(basename "$archive")
    "$uv" venv --quiet --python "$python" "$clean"
    "$uv" pip install --quiet --python "$clean/bin/python" "$archive" mypy
    (cd "$clean" && bin/python "$here/packaging_round.py" && bin/bgmiv --version)
    echo "$(basename "$archive"): installed, fitted, reported, saved, opened"
done
# The types of what a user calls are known: an untyped package would reveal Any, or an error.
cd "$clean"
bin/mypy user_script.py >types.txt || { cat types.txt; exit 1; }
for name in baselines.tsls.TSLS intervals.Interval estimators.base.IVEstimator; do
    grep -q "\"bgmiv.$name\"" types.txt || { cat types.txt; exit 1; }
done
echo "typed"
