# SPDX-License-Identifier: Apache-2.0
# Every outside library: its target, who may link it, its licence and why. Versions are Debian 12's, the
# engines apart, which tools/bootstrap.sh pins.
#
# target                        component          licence          why
# fmt::fmt (9.1)                base and all       MIT              formatting
# spdlog::spdlog (1.10)         base/log           MIT              logging, one translation unit
# xxhash::xxhash (0.8)          base/digest        BSD-2-Clause     XXH3 digests
# OpenSSL::Crypto (3.0)         base/mac           Apache-2.0       HMAC-SHA-256, random keys
# OpenSSL::SSL (3.0)            net/tls            Apache-2.0       TLS of control and data connections
# prometheus-cpp::core (1.0)    base/metrics       MIT              metrics registry and text format
# boost::asio (1.81)            net, http, shells  BSL-1.0          Asio and Beast, compiled once
# boost::json, boost::url       http, router       BSL-1.0          JSON and URL, compiled once
# Boost::headers (1.81)         as needed          BSL-1.0          header-only parts
# protobuf::libprotobuf (3.21)  wire               BSD-3-Clause     messages; see isthmus_proto()
# yaml-cpp::yaml-cpp (0.7)      fleet              MIT              the fleet file
# CLI11::CLI11 (2.1)            cli                BSD-3-Clause     command line
# hwy::hwy (1.0)                transform          Apache-2.0       portable SIMD kernels
# zstd::zstd (1.5)              codec              BSD-3-Clause     compression of chunks
# llama::llama (0.5.0-dev)      engine/llamacpp    MIT              embedded engine, pinned source; static
# llama::jinja                  engine/llamacpp    MIT              chat templates; of the same source
# openvino::runtime (2026.4.1)  engine/openvino    Apache-2.0       embedded engine, from the pinned wheel
# openvino::frontend::gguf      engine/openvino    Apache-2.0       reads GGUF; links openvino::runtime
# nanobind (3.1)                python             BSD-3-Clause     the extension module
# scikit-build-core (1.1)       pyproject.toml     Apache-2.0       builds the wheel
# numpy (2.4)                   python, tests      BSD-3-Clause     arrays
# GTest::gmock, GTest::gtest    tests              BSD-3-Clause     test framework (isthmus_test links it)
# rapidcheck, rapidcheck_gtest  tests              BSD-2-Clause     property tests, <rapidcheck/gtest.h>

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
add_library(xxhash::xxhash ALIAS PkgConfig::xxhash)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
add_library(zstd::zstd ALIAS PkgConfig::zstd)
find_package(Boost 1.81 REQUIRED)
find_package(Protobuf REQUIRED)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
find_package(CLI11 REQUIRED)
find_package(hwy REQUIRED CONFIG)
if(ISTHMUS_TESTS)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
endif()

# Debian's package configuration of prometheus-cpp asks for libcurl and civetweb, which its core does not use.
find_library(ISTHMUS_PROMETHEUS_CORE prometheus-cpp-core REQUIRED)
find_path(ISTHMUS_PROMETHEUS_INCLUDE prometheus/registry.h REQUIRED)
add_library(prometheus-cpp::core UNKNOWN IMPORTED)
set_target_properties(prometheus-cpp::core PROPERTIES
  IMPORTED_LOCATION ${ISTHMUS_PROMETHEUS_CORE}
  INTERFACE_INCLUDE_DIRECTORIES ${ISTHMUS_PROMETHEUS_INCLUDE}
  INTERFACE_LINK_LIBRARIES Threads::Threads)

# Boost's header-only libraries, each compiled once. Compiling Asio and Beast in every file that uses them
# costs tens of seconds a file, so the definitions below are part of using them.
function(isthmus_boost name includes)
  set(source ${CMAKE_BINARY_DIR}/boost/${name}.cc)
  file(CONFIGURE OUTPUT ${source} CONTENT "${includes}")
  add_library(boost_${name} STATIC ${source})
  add_library(boost::${name} ALIAS boost_${name})
  target_compile_options(boost_${name} PRIVATE -w)
  target_link_libraries(boost_${name} PUBLIC Boost::headers Threads::Threads)
endfunction()
isthmus_boost(asio "#include <boost/asio/impl/src.hpp>\n#include <boost/beast/src.hpp>\n")
target_compile_definitions(boost_asio PUBLIC BOOST_ASIO_SEPARATE_COMPILATION BOOST_ASIO_NO_DEPRECATED
  BOOST_BEAST_SEPARATE_COMPILATION)
isthmus_boost(json "#include <boost/json/src.hpp>\n")
isthmus_boost(url "#include <boost/url/src.hpp>\n")

# isthmus_proto(TARGET file.proto...) makes the static library TARGET of the messages; its users include
# "file.pb.h". Paths are relative to spec/proto, the import root.
function(isthmus_proto target)
  set(root ${CMAKE_SOURCE_DIR}/spec/proto)
  set(out ${CMAKE_BINARY_DIR}/proto)
  file(MAKE_DIRECTORY ${out})
  set(generated)
  foreach(file ${ARGN})
    file(RELATIVE_PATH name ${root} ${root}/${file})
    if(IS_ABSOLUTE ${file})
      file(RELATIVE_PATH name ${root} ${file})
    endif()
    string(REGEX REPLACE "\\.proto$" "" stem ${name})
    add_custom_command(
      OUTPUT ${out}/${stem}.pb.cc ${out}/${stem}.pb.h
      COMMAND protobuf::protoc --proto_path=${root} --cpp_out=${out} ${root}/${name}
      DEPENDS ${root}/${name} VERBATIM)
    list(APPEND generated ${out}/${stem}.pb.cc)
  endforeach()
  add_library(${target} STATIC ${generated})
  target_compile_options(${target} PRIVATE -w)
  target_include_directories(${target} SYSTEM PUBLIC ${out})
  target_link_libraries(${target} PUBLIC protobuf::libprotobuf)
  set_property(GLOBAL APPEND PROPERTY ISTHMUS_PROTO_TARGETS ${target})
endfunction()

if(ISTHMUS_ENGINES)
  include(${CMAKE_CURRENT_LIST_DIR}/engines.cmake)
endif()
