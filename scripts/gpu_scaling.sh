#!/usr/bin/env bash
# Everything there is to know about training on this machine's 2, 4 or 8 GPUs, in ten minutes and one JSON:
# do all strategies follow one GPU, how fast is full-size Pi0.5, what happens when a process is killed.
# Usage: scripts/gpu_scaling.sh [--program PATH] [--out FILE] [--quick] [--time-limit S] ...; --help lists every option
set -euo pipefail
cd "$(dirname "$0")/.."
exec python3 tools/gpu_scaling.py "$@"
