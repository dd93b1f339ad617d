#!/usr/bin/env bash
# Points the vendors' own Python clients at the tests' model server: what it sends must be what they parse.
#
#     tests/wire/run.sh [BIN_DIR]
#
# Needs the `model-server` program built (BIN_DIR, else target/debug) and python3 with venv. The packages `anthropic` and
# `openai` are installed once, at the versions named here, into target/wire.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../../target}
bin=${1:-${SWARM_TEST_BIN_DIR:-$target/debug}}
if [ ! -x "$bin/model-server" ]; then
    echo "run.sh: $bin/model-server is missing: cargo build -p integration-tests --bins" >&2
    exit 1
fi

venv=$target/wire/venv
wanted="$here/requirements.txt"
# Complete only when the list of what was installed lies beside it.
if ! cmp -s "$wanted" "$venv/installed.txt"; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$venv/installed.txt"
fi
exec "$venv/bin/python" "$here/check.py" "$bin/model-server"
