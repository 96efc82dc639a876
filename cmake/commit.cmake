# SPDX-License-Identifier: Apache-2.0
# Makes OUT from IN with the commit that SOURCE is at; "+" if files differ from it.
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
if(failed)
  set(commit "unknown")
else()
  execute_process(COMMAND git -C ${SOURCE} diff --quiet HEAD RESULT_VARIABLE differs ERROR_QUIET)
  if(differs)
    string(APPEND commit "+")
  endif()
endif()
configure_file(${IN} ${OUT} @ONLY)
