#!/usr/bin/env bash
# From a fresh clone to a trained policy: installs, builds, trains a small Pi0.5 on PushT, and draws the results.
# Usage: scripts/demo.sh [a.b=c ...]     overrides of configs/pi05/pusht_demo.yaml, e.g. output_dir=runs/other
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS
scripts/build.sh
echo "==> ready after $((SECONDS - start)) s; training"
build/bin/longship train configs/pi05/pusht_demo.yaml "$@"
echo "==> demo finished after $((SECONDS - start)) s"
