# SPDX-License-Identifier: Apache-2.0
# The embedded engines, as tools/bootstrap.sh leaves them in ISTHMUS_DEPS_DIR.

set(llama_install ${ISTHMUS_DEPS_DIR}/llama-install)
set(openvino_root ${ISTHMUS_DEPS_DIR}/openvino)
set(ISTHMUS_TEST_MODEL ${ISTHMUS_DEPS_DIR}/models/SmolLM2-135M-Instruct.Q4_1.gguf)
foreach(needed ${llama_install}/lib/libllama.a ${ISTHMUS_DEPS_DIR}/llama.cpp/common/jinja
    ${openvino_root}/libs ${ISTHMUS_TEST_MODEL})
  if(NOT EXISTS ${needed})
    message(FATAL_ERROR
      "${needed} is missing: run tools/bootstrap.sh, or configure with -DISTHMUS_ENGINES=OFF")
  endif()
endforeach()

# The static archives are order-dependent: llama, ggml, the CPU backend, ggml-base.
add_library(llama::llama INTERFACE IMPORTED)
target_include_directories(llama::llama SYSTEM INTERFACE ${llama_install}/include)
target_link_libraries(llama::llama INTERFACE
  ${llama_install}/lib/libllama.a ${llama_install}/lib/libggml.a ${llama_install}/lib/libggml-cpu.a
  ${llama_install}/lib/libggml-base.a Threads::Threads m dl)

# Its Jinja engine, which the installed library doesn't have.
set(llama_common ${ISTHMUS_DEPS_DIR}/llama.cpp/common)
add_library(llama_jinja STATIC
  ${llama_common}/jinja/lexer.cpp ${llama_common}/jinja/parser.cpp ${llama_common}/jinja/runtime.cpp
  ${llama_common}/jinja/string.cpp ${llama_common}/jinja/value.cpp ${llama_common}/json.cpp
  ${llama_common}/unicode.cpp)
add_library(llama::jinja ALIAS llama_jinja)
target_compile_options(llama_jinja PRIVATE -w)
target_include_directories(llama_jinja SYSTEM PUBLIC ${llama_common}
  PRIVATE ${ISTHMUS_DEPS_DIR}/llama.cpp/vendor ${llama_install}/include)

# The wheel's shared libraries are found at run time by the build rpath, which CMake derives from these paths.
function(isthmus_openvino_library target stem)
  file(GLOB library ${openvino_root}/libs/lib${stem}.so.*)
  if(NOT library)
    message(FATAL_ERROR "lib${stem}.so.* is missing in ${openvino_root}/libs: run tools/bootstrap.sh")
  endif()
  get_filename_component(soname ${library} NAME)
  add_library(${target} SHARED IMPORTED)
  set_target_properties(${target} PROPERTIES
    IMPORTED_LOCATION ${library} IMPORTED_SONAME ${soname}
    INTERFACE_INCLUDE_DIRECTORIES ${openvino_root}/include)
endfunction()
isthmus_openvino_library(openvino::runtime openvino)
isthmus_openvino_library(openvino::frontend::gguf openvino_gguf_frontend)
target_link_libraries(openvino::frontend::gguf INTERFACE openvino::runtime)
