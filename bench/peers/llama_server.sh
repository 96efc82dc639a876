#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds llama.cpp's own server and quantiser from the source distribution that the engine comes from, with
# the engine's compiler and options; prints their folder. The server's web page isn't in that: an empty one
# stands in.
# Usage: bench/peers/llama_server.sh FOLDER
set -euo pipefail
folder=$(realpath -m "$1")
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/isthmus/downloads
archive=$cache/$(sed -n 's/^llama_file=//p' "$root/tools/bootstrap.sh")
sha256=$(sed -n 's/^llama_sha256=//p' "$root/tools/bootstrap.sh")
programs=$folder/build/bin
[[ -x $programs/llama-server && -x $programs/llama-quantize ]] && { echo "$programs"; exit; }
if ! echo "$sha256  $archive" | sha256sum --check --status; then
  echo "$archive isn't there: run make bootstrap first" >&2
  exit 1
fi
mkdir -p "$folder/source"
inside=$(basename "${archive%.tar.gz}")/vendor/llama.cpp
tar -xzf "$archive" -C "$folder/source" --strip-components=3 "$inside"
mkdir -p "$folder/source/tools/ui"
cat > "$folder/source/tools/ui/CMakeLists.txt" << 'END'
add_library(llama-ui INTERFACE)
target_include_directories(llama-ui INTERFACE ${CMAKE_CURRENT_SOURCE_DIR})
add_custom_target(llama-ui-assets)
END
cat > "$folder/source/tools/ui/ui.h" << 'END'
#include <string>
#include <vector>
struct llama_ui_asset { std::string name; };
inline std::vector<llama_ui_asset> llama_ui_get_assets() { return {}; }
END
{
  cmake -S "$folder/source" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 \
    -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_BUILD_COMMIT=unknown -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_BLAS=OFF -DGGML_CCACHE=OFF
  ninja -C "$folder/build" -j 2 llama-server llama-quantize
} > "$folder/build.log" 2>&1 || { tail -n 5 "$folder/build.log" >&2; exit 1; }
echo "$programs"
