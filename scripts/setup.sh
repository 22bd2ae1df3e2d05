#!/usr/bin/env bash
# Installs what Longship needs on Debian 12 or Ubuntu 24.04, and nothing twice.
# Usage: scripts/setup.sh [--tests]     --tests adds what the tests need.
# Packages come by apt-get when this user may (root, or sudo without a password); otherwise the line to run is printed.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(python3 python3-venv g++ ccache lld pkg-config libfmt-dev libspdlog-dev nlohmann-json3-dev libyaml-cpp-dev
  libcli11-dev libsentencepiece-dev libpcre2-dev libutf8proc-dev libavformat-dev libavcodec-dev libavutil-dev libswscale-dev
  libgloo-dev)
if [[ "${1:-}" == "--tests" ]]; then
  packages+=(libgtest-dev libgmock-dev)
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [[ "$status" == "install ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]})); then
  sudo=()
  if [[ $(id -u) -ne 0 ]]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      sudo=(sudo)
    else
      echo "These packages are missing and this user may not install them. Run this line, then this script again:" >&2
      echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
      exit 2
    fi
  fi
  echo "==> installing ${#missing[@]} packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

# A stamp holds the requirements it was made from, so a changed pin installs again.
install() {
  local stamp=.venv/longship-$(basename "$1")
  if cmp -s "$1" "$stamp" 2>/dev/null; then return; fi
  echo "==> installing $(tr '\n' ' ' <"$1")into .venv"
  [[ -x .venv/bin/pip ]] || python3 -m venv .venv
  .venv/bin/pip install --quiet --disable-pip-version-check -r "$1"
  cp "$1" "$stamp"
}
install scripts/requirements.txt
if [[ "${1:-}" == "--tests" ]]; then install scripts/requirements-tests.txt; fi
