#!/usr/bin/env bash
# Builds base, io and data with AddressSanitizer and UndefinedBehaviorSanitizer and runs their tests.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --tests
.venv/bin/cmake --preset asan >/dev/null
.venv/bin/cmake --build --preset asan --parallel "$(nproc)"
# Leaks are looked for in our code; the one-time allocations of third-party libraries are listed in the file.
export LSAN_OPTIONS="suppressions=$PWD/tools/lsan.supp:print_suppressions=0" ASAN_OPTIONS=detect_odr_violation=1
export UBSAN_OPTIONS=print_stacktrace=1
.venv/bin/ctest --test-dir build/asan --output-on-failure --parallel "$(nproc)" -L 'base|io|data'
