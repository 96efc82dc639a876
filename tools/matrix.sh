#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every pair of KV forms of both engines on all prompts, shared by processes; then docs/crossing-matrix.md and
# the records of deploy/demo/qualification. What is measured is kept by build, so that a run that was stopped
# goes on.
# Usage: tools/matrix.sh CROSSING_TEST PROCESSES     (ISTHMUS_MATRIX_PROMPTS=8: so many of the prompts)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
test=$(realpath "$1")
processes=$2
deps=${ISTHMUS_DEPS_DIR:-$root/third_party}
export ISTHMUS_TEST_MODEL=$deps/models/SmolLM2-135M-Instruct.Q4_1.gguf
build=$(sha256sum "$test" | cut -c 1-16)
export ISTHMUS_MATRIX_FOLDER=$root/build/matrix/$build
mkdir -p "$ISTHMUS_MATRIX_FOLDER"
cd "$(dirname "$test")"
for ((i = 0; i < processes; ++i)); do
  ISTHMUS_MATRIX_SHARE=$i/$processes "$test" --gtest_also_run_disabled_tests \
    --gtest_filter=Matrix.DISABLED_MeasuresItsPrompts &
done
for ((i = 0; i < processes; ++i)); do wait -n; done
ISTHMUS_WRITE_MATRIX=$root "$test" --gtest_filter='Matrix.EveryPair*'
