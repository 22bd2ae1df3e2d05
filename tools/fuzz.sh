#!/usr/bin/env bash
# Builds the fuzz targets with clang and runs each for a while. Usage: tools/fuzz.sh [SECONDS] [TARGET ...]
# New inputs go to build/fuzz/corpus; a finding stops the run and leaves its input beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
shift || true
.venv/bin/cmake --preset fuzz >/dev/null
.venv/bin/cmake --build build/fuzz --parallel "$(nproc)" --target fuzz
targets=("$@")
((${#targets[@]})) || targets=(yaml_fuzz json_fuzz safetensors_fuzz shard_index_fuzz tokenizer_fuzz hf_tokenizer_fuzz dataset_fuzz video_fuzz)
for target in "${targets[@]}"; do
  mkdir -p "build/fuzz/corpus/$target"
  echo "==> $target, $seconds s"
  (cd build/fuzz && "bin/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 \
    "corpus/$target" "../../tests/fuzz/corpus/$target" 2>&1 | tail -12)
done
