#!/usr/bin/env bash
# Runs the fuzz targets, each for some minutes, starting from the corpus in the repository.
#
#     tests/fuzz/run.sh              three minutes each
#     tests/fuzz/run.sh 10 chat      ten minutes of one
#
# Needs a nightly toolchain and cargo-fuzz (cargo install --locked cargo-fuzz). A finding stands in
# artifacts/; what is worth keeping goes, small and with a name, to corpus/, which the usual tests replay.
set -euo pipefail
cd "$(dirname "$(realpath "${BASH_SOURCE[0]}")")"

minutes=${1:-3}
shift || true
[ $# -gt 0 ] || set -- sse chat responses messages transcript
cargo +nightly fuzz --version >/dev/null 2>&1 || {
    echo "run.sh: needs a nightly toolchain and cargo-fuzz: rustup toolchain install nightly; cargo install --locked cargo-fuzz" >&2
    exit 1
}
for target in "$@"; do
    echo "==> $target"
    # What is found on the way is kept apart: the corpus holds chosen files only.
    mkdir -p "found/$target"
    cargo +nightly fuzz run --fuzz-dir . --sanitizer none "$target" "found/$target" "corpus/$target" -- \
        -max_total_time=$((minutes * 60)) -timeout=10 -rss_limit_mb=2048 -max_len=16384
done
