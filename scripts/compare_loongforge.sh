#!/usr/bin/env bash
# Full-size Pi0.5 training steps of LoongForge and of Longship on this machine's GPU, one after the other, and the ratio.
# Usage: scripts/compare_loongforge.sh --harness DIR --loongforge DIR --lerobot PATH [--out DIR] [--longship PROGRAM]
#   --harness     the folder with pi05_loongforge.py, which runs LoongForge's own model, trainer and optimizer
#   --loongforge  a LoongForge checkout (or its loongforge/, configs/ and examples/ with a file COMMIT)
#   --lerobot     a lerobot checkout, or its pi_gemma.py alone
#   --out         where reports go (default: runs/compare_loongforge)      --longship  default: build/bin/longship
# LoongForge runs at its best settings: batch 32, torch.compile, fused AdamW, no NaN sweep. Both get random weights and
# random batches of 2 cameras, horizon 50 and 60 valid text tokens. python3 must have what LoongForge needs.
set -euo pipefail
cd "$(dirname "$0")/.."
harness= loongforge= lerobot= out=runs/compare_loongforge longship=build/bin/longship
while (($#)); do
  case "$1" in
    --harness) harness=$2; shift ;;
    --loongforge) loongforge=$2; shift ;;
    --lerobot) lerobot=$2; shift ;;
    --out) out=$2; shift ;;
    --longship) longship=$2; shift ;;
    -h | --help) sed -n '2,9s/^# //p' "$0"; exit 0 ;;
    *) echo "compare_loongforge.sh: unknown option '$1'; see --help" >&2; exit 2 ;;
  esac
  shift
done
for word in harness loongforge lerobot; do
  [[ -n ${!word} ]] || { echo "compare_loongforge.sh: --$word is required; see --help" >&2; exit 2; }
done
mkdir -p "$out"
echo "==> LoongForge (its compilation takes more than a minute)"
python3 "$harness/pi05_loongforge.py" --loongforge "$loongforge" --lerobot "$lerobot" --compile default --batch 32 \
  "--extra=--optimizer TorchFusedAdamW --no-check-for-nan-in-loss-and-grad" >"$out/loongforge.log" 2>&1 ||
  { tail -20 "$out/loongforge.log" >&2; exit 1; }
tail -1 "$out/loongforge.log" >"$out/loongforge.json"
common=(configs/pi05/full.yaml model.action_dim=7 --synthetic 60 --steps 20 --warmup 4)
echo "==> Longship, bf16"
"$longship" bench train "${common[@]}" --json "$out/longship_bf16.json"
echo "==> Longship, FP8"
"$longship" bench train "${common[@]}" train.fp8=default --json "$out/longship_fp8.json"
python3 - "$out" <<'PY'
import json, sys
out = sys.argv[1]
read = lambda name: json.load(open(f"{out}/{name}.json"))
reference = read("loongforge")["samples_per_s"]
report = {"loongforge_samples_per_s": reference}
for name in ("bf16", "fp8"):
    rate = read(f"longship_{name}")["samples_per_s"]
    report[f"longship_{name}_samples_per_s"] = rate
    report[f"ratio_{name}"] = round(rate / reference, 3)
print(json.dumps(report))
json.dump(report, open(f"{out}/ratio.json", "w"))
PY
