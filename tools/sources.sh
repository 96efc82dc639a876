#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the names of all C++ files of this project, each ended by a zero byte.
cd "$(dirname "$0")/.." || exit 1
for folder in src apps python tests bench; do
  [ -d "$folder" ] && find "$folder" \( -name '*.h' -o -name '*.cc' \) -print0
done | sort -z
