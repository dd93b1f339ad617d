#!/usr/bin/env bash
# The dashboard in headless Chromium, from the login to the merged branch.
#
#     tests/e2e/run.sh [BIN_DIR]
#
# Needs the programs built with the dashboard (BIN_DIR, else target/debug), chromium, Node.js 20.19, git, python3.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=${1:-${SWARM_TEST_BIN_DIR:-${CARGO_TARGET_DIR:-$here/../../target}/debug}}
for program in swarm swarm-worker model-server; do
    if [ ! -x "$bin/$program" ]; then
        echo "run.sh: $bin/$program is missing: cargo build --workspace --bins" >&2
        exit 1
    fi
done
[ -d "$here/node_modules/playwright-core" ] || npm --prefix "$here" ci --no-fund --no-audit
SWARM_TEST_BIN_DIR=$(realpath "$bin") exec npm --prefix "$here" test
