#!/bin/sh
# Makes a git repository of the sample project in a new or empty directory:
#
#     deploy/sample.sh /tmp/shop
#     cd /tmp/shop && swarm run --model demo "refactor the auth module"
set -eu

if [ $# -ne 1 ]; then
    echo "usage: $0 DIR" >&2
    exit 2
fi
sample=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)/sample
target=$1
if [ -e "$target" ] && [ -n "$(ls -A -- "$target")" ]; then
    echo "$0: $target is not empty" >&2
    exit 1
fi
mkdir -p -- "$target"
cp -R -- "$sample/." "$target/"
cd -- "$target"
find . -name __pycache__ -type d -prune -exec rm -rf {} +
git init -q -b main
# A machine without a git identity gets one for this repository alone; workers commit here too.
git config user.name >/dev/null || git config --local user.name "Swarm Sample"
git config user.email >/dev/null || git config --local user.email "sample@swarm.invalid"
git add -A
git commit -q -m "The shop, with an auth module in need of care"
echo "the sample is in $target"
