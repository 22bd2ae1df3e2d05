#!/usr/bin/env bash
# Builds build/bin/longship. Usage: scripts/build.sh [--tests] [--cpu] [--dir DIR]
#   --tests  builds the tests as well        --cpu  leaves CUDA out even where nvcc exists
#   --dir    another build folder (default: build)
set -euo pipefail
cd "$(dirname "$0")/.."

tests=OFF
cuda=auto
dir=build
while (($#)); do
  case "$1" in
    --tests) tests=ON ;;
    --cpu) cuda=OFF ;;
    --dir) dir=$2; shift ;;
    -h | --help) sed -n '2,4s/^# //p' "$0"; exit 0 ;;
    *) echo "build.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
  esac
  shift
done

if [[ $tests == ON ]]; then scripts/setup.sh --tests; else scripts/setup.sh; fi
if [[ $cuda == auto ]]; then
  cuda=OFF
  nvcc=$(command -v nvcc || { [[ -x /usr/local/cuda/bin/nvcc ]] && echo /usr/local/cuda/bin/nvcc; } || true)
  if [[ -z $nvcc ]]; then
    echo "==> no nvcc found: building the CPU flavour (install the CUDA 13 toolkit for the GPU flavour)"
  elif ! "$nvcc" --version | grep -q 'release 13\.'; then
    echo "==> $nvcc is not CUDA 13: building the CPU flavour"
  else
    cuda=ON
    export CUDACXX=$nvcc
    echo "==> nvcc found: building the CUDA flavour"
  fi
fi
preset=release
[[ $tests == ON ]] && preset=dev
.venv/bin/cmake --preset "$preset" -B "$dir" -DLS_CUDA=$cuda -DLS_TESTS=$tests >"/tmp/longship-configure.$$" 2>&1 ||
  { cat "/tmp/longship-configure.$$" >&2; exit 1; }
rm -f "/tmp/longship-configure.$$"
.venv/bin/cmake --build "$dir" --parallel "$(nproc)"
echo "==> built $dir/bin/longship"
