# SPDX-License-Identifier: Apache-2.0
# How this project builds a component: one library and one test binary a folder.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(ISTHMUS_CCACHE ccache)
if(ISTHMUS_CCACHE)
  # Paths below the source folder are hashed relative to it, so that two clones share what was compiled.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1
               ${ISTHMUS_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
endif()

# lld links the engine-sized programs several times faster than GNU ld.
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  find_program(ISTHMUS_LLD NAMES ld.lld-19 ld.lld)
  if(ISTHMUS_LLD)
    add_link_options(-fuse-ld=lld)
  endif()
endif()

# Applies to all that this project compiles, and not to the libraries that it finds.
set(ISTHMUS_SANITIZE "" CACHE STRING "Sanitizers for -fsanitize=, for example address,undefined or thread")
if(ISTHMUS_SANITIZE)
  add_compile_options(-fsanitize=${ISTHMUS_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${ISTHMUS_SANITIZE})
  # A test that counts allocations has an operator new of its own, and ThreadSanitizer's can't be left out.
  if(ISTHMUS_SANITIZE STREQUAL "thread")
    add_link_options(-Wl,-z,muldefs)
  endif()
endif()

# Coverage feedback in all code; main() in the targets alone.
if(ISTHMUS_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

set(ISTHMUS_WARNINGS
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Wimplicit-fallthrough
  -Werror=return-type -Werror=unused-result)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees overflows in vector::resize, and members of a variant's other alternatives, that aren't there.
  list(APPEND ISTHMUS_WARNINGS -Wno-stringop-overflow -Wno-maybe-uninitialized)
endif()

# isthmus_library(NAME SOURCES files... [DEPS components...] [PRIVATE_DEPS targets...]
#                 [PUBLIC_DEPS targets...])
# The target is isthmus_NAME; includes are written from src/.
function(isthmus_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS;PUBLIC_DEPS" ${ARGN})
  set(target isthmus_${name})
  if(ARG_SOURCES)
    add_library(${target} STATIC ${ARG_SOURCES})
    set(scope PUBLIC)
    target_compile_options(${target} PRIVATE ${ISTHMUS_WARNINGS})
    target_link_libraries(${target} PRIVATE ${ARG_PRIVATE_DEPS})
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(${target} ${scope} ${CMAKE_SOURCE_DIR}/src)
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${target} ${scope} isthmus_${dep})
  endforeach()
  target_link_libraries(${target} ${scope} ${ARG_PUBLIC_DEPS})
endfunction()

# isthmus_program(NAME SOURCES files... [DEPS components...] [PRIVATE_DEPS targets...])
# The program lies at the top of the build directory: build/release/NAME.
function(isthmus_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_compile_options(${name} PRIVATE ${ISTHMUS_WARNINGS})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${name} PRIVATE isthmus_${dep})
  endforeach()
  target_link_libraries(${name} PRIVATE ${ARG_PRIVATE_DEPS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

# isthmus_test(NAME SOURCES files... [DEPS components...] [PRIVATE_DEPS targets...]
#              [LABEL unit] [TIMEOUT seconds])
# The binary is NAME_test, one CTest entry, labelled unit, contract, faults or integration. It finds the small
# model's path in the environment variable ISTHMUS_TEST_MODEL when the engines are configured.
function(isthmus_test name)
  if(NOT ISTHMUS_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 600)
  endif()
  if(ISTHMUS_SANITIZE)  # Under it the exhaustive tests of single threads take ten times as long.
    math(EXPR ARG_TIMEOUT "${ARG_TIMEOUT} * 4")
  endif()
  set(target ${name}_test)
  add_executable(${target} ${ARG_SOURCES})
  target_compile_options(${target} PRIVATE ${ISTHMUS_WARNINGS})
  foreach(dep ${ARG_DEPS})
    target_link_libraries(${target} PRIVATE isthmus_${dep})
  endforeach()
  target_link_libraries(${target} PRIVATE ${ARG_PRIVATE_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${target} COMMAND ${target})
  set_tests_properties(${target} PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT})
  if(ISTHMUS_SANITIZE)  # A part of the cases of properties and covers; the other trees run all.
    set_property(TEST ${target} APPEND PROPERTY ENVIRONMENT
      "RC_PARAMS=max_success=25" "ISTHMUS_TEST_STRIDE=5")
  endif()
  if(ISTHMUS_TEST_MODEL)
    set_property(TEST ${target} APPEND PROPERTY ENVIRONMENT "ISTHMUS_TEST_MODEL=${ISTHMUS_TEST_MODEL}")
  endif()
endfunction()
