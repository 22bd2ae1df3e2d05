#!/usr/bin/env bash
# Checks (or with --fix mends) the formatting of every C++ and CUDA file with one pinned clang-format.
set -euo pipefail
cd "$(dirname "$0")/.."
version=14.0.6
if ! .venv/bin/clang-format --version 2>/dev/null | grep -q "version $version"; then
  .venv/bin/pip install --quiet --disable-pip-version-check "clang-format==$version"
fi
mapfile -t files < <(git ls-files --cached --others --exclude-standard 'src/*' 'apps/*' 'tests/*' 'bench/*' 'cmake/*.h' |
  grep -E '\.(h|cpp|cuh|cu)$')
if [[ "${1:-}" == "--fix" ]]; then
  .venv/bin/clang-format -i "${files[@]}"
else
  .venv/bin/clang-format --dry-run --Werror "${files[@]}"
  echo "${#files[@]} files are formatted"
fi
