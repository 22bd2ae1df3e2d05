#!/usr/bin/env bash
# Builds Longship with its tests and runs them. GPU tests are skipped where there is no GPU.
# Usage: scripts/test.sh [arguments for ctest, e.g. -R Safetensors]
# Without arguments all but the suites that repeat a quick one at every number of processes (labels that end in _full).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh --tests
(($#)) || set -- --label-exclude '_full$'
.venv/bin/ctest --test-dir build --output-on-failure --parallel "$(nproc)" --progress "$@"
