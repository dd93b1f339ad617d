# Short commands; `just` lists them.
_default:
    @just --list

# format everything
fmt:
    cargo fmt --all
    npm --prefix web-dashboard run format

# what CI lints
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings
    npm --prefix web-dashboard run check

# unit tests; `just test full` is ./test
test what="fast":
    ./test {{ if what == "full" { "" } else { what } }}

# the main job on the sample repository, with the scripted model
demo:
    ./demo --debug

# compare the dashboard's types with the running server's API
conforms:
    npm --prefix web-dashboard run conforms -- "http://$(jq -r .address "${SWARM_HOME:-$HOME/.swarm}/server.json")"

# write changed snapshots
snapshots:
    UPDATE_EXPECT=1 cargo nextest run --workspace

# the harness's numbers
bench:
    cargo build --release -p coordinator -p worker --bins
    tests/bench/bench.py

# how long transcripts take to open
bench-transcripts:
    cargo run --release -p agent-host --example bench_transcript_load

# Grep beside rg, and what a call of a file tool costs
bench-tools:
    cargo run --release -p worker --example bench_tools

# search for bytes that break a parser
fuzz minutes="3":
    tests/fuzz/run.sh {{ minutes }}

# the README's picture
screenshot:
    scripts/screenshot.sh
