#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts `isthmus up`, sends one streamed chat, prints the answer and what crossed between the two engines,
# stops everything. Fails loudly: an answer that wasn't computed by the pair is a failure too.
# Usage: tools/demo.sh [options of isthmus up]          e.g. tools/demo.sh --decode openvino:f32
#   ISTHMUS_BIN  the program (default: build/release/isthmus)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=${ISTHMUS_BIN:-$root/build/release/isthmus}
ready_seconds=300

die() { echo "demo: error: $*" >&2; exit 1; }
[[ -x $program ]] || die "$program is missing: run make build"
command -v python3 >/dev/null || die "python3 is missing: run tools/bootstrap.sh system"

work=$(mktemp -d)
up=
stop() {
  local status=$?
  if [[ -n $up ]] && kill -0 "$up" 2>/dev/null; then
    kill -TERM "$up"
    wait "$up" || status=$?
  fi
  if (( status != 0 )) && [[ -s $work/log ]]; then
    echo "demo: the last lines of the log:" >&2
    tail -n 30 "$work/log" >&2
  fi
  rm -rf "$work"
  (( status == 0 )) && echo "demo: stopped, nothing left running"
  exit "$status"
}
trap stop EXIT
trap 'exit 130' INT TERM

echo "demo: starting a prefill worker, a decode worker and a router"
mkfifo "$work/out"
"$program" up --listen 127.0.0.1:0 "$@" > "$work/out" 2> "$work/log" &
up=$!
exec 3< "$work/out"
if ! read -r -t "$ready_seconds" -u 3 line; then
  die "isthmus up isn't ready (it ended, or $ready_seconds s passed)"
fi
[[ $line == "ready http://"* ]] || die "isthmus up said '$line' where 'ready http://HOST:PORT' was expected"
grep -E '^isthmus up: (prefill|decode) worker .* (loading|serves)' "$work/log" | sed 's/^isthmus up:/demo:/'

python3 "$root/tools/demo_chat.py" "${line#ready }" || die "the chat failed"
kill -TERM "$up"
wait "$up" || die "isthmus up ended with exit code $?"
up=
