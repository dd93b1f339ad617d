#!/usr/bin/env bash
# Makes docs/dashboard.png: a run of the demo model on the sample repository, as the dashboard shows it.
#
#     scripts/screenshot.sh [BIN_DIR]
#
# Needs both programs built with the dashboard (BIN_DIR, else target/release, else target/debug), chromium, python3.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=${1:-}
if [ -z "$bin" ]; then
    bin=$root/target/release
    [ -x "$bin/swarm" ] || bin=$root/target/debug
fi
bin=$(realpath "$bin")

place=$(mktemp -d "${TMPDIR:-/tmp}/swarm-picture.XXXXXX")
export SWARM_HOME=$place/home
finish() {
    "$bin/swarm" serve --stop --workers >/dev/null 2>&1 || true
    rm -rf "$place"
}
trap finish EXIT

"$root/deploy/sample.sh" "$place/shop" >/dev/null
cd "$place/shop"
accepted=$("$bin/swarm" run --model demo --detach --json "refactor auth module" | tail -n 1)
session=$(python3 -c 'import json, sys; print(json.loads(sys.argv[1])["session_id"])' "$accepted")

# The link holds a code that works once; the page takes it out of the address.
link() { "$bin/swarm" dashboard --no-open | grep -Eo 'http://127\.0\.0\.1:[0-9]+/#code=[A-Z0-9-]+' | head -n 1; }
picture() {
    local path=$1 out=$2 address
    shift 2
    address=$(link)
    python3 "$root/scripts/page.py" "${address/\/#//$path#}" "$root/docs/$out" "$@"
}

# All workers have ended: the verdict, what each did, and the conversation are on one page.
"$bin/swarm" attach "$session" >/dev/null 2>&1 </dev/null || true
picture "s/$session" dashboard.png --wait-for complete
echo "docs/dashboard.png"
