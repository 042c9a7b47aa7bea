# attune_library(NAME [SOURCES ...] [DEPS ...] [LIBS ...])
#   One static library per folder: attune_NAME. Without SOURCES: every .cc of the folder (and its
#   subfolders) that is no test, fuzzer or benchmark. DEPS are other folders' names, public to users
#   of this one; LIBS are third-party targets, private to it.
# attune_test(NAME [SOURCES ...] [DEPS ...] [LIBS ...] [LABELS ...])
#   One test program attune_NAME_test of the folder's *_test.cc.
# attune_fuzzer(NAME SOURCES ... DEPS ...)
#   One libFuzzer program attune_NAME_fuzz, only with ATTUNE_FUZZ; the target `fuzzers` builds all.

add_library(attune_flags INTERFACE)
target_compile_options(attune_flags INTERFACE -Wall -Wextra -Wno-missing-field-initializers
                                              $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>  # GCC 12, PR105651
                                              # nvcc hands these on to the compiler of host code, but has a -Werror of its own
                                              $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${ATTUNE_WERROR}>>:-Werror>
                                              # 2810: nvcc takes the assignment in Result's constructor for a call
                                              $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo$<SEMICOLON>--diag-suppress=2810>
                                              # A sixth of the size, line tables and all.
                                              $<$<COMPILE_LANGUAGE:CUDA>:--compress-mode=size>)
# The baseline of every unit; kernels for higher levels are units with flags of their own (src/ops, src/attention).
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(attune_flags INTERFACE -march=x86-64-v3)
endif()
target_include_directories(attune_flags INTERFACE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
target_link_libraries(attune_flags INTERFACE Threads::Threads)
foreach(sanitizer IN LISTS ATTUNE_SANITIZE)
  target_compile_options(attune_flags INTERFACE -fsanitize=${sanitizer} -fno-omit-frame-pointer -g)
  target_link_options(attune_flags INTERFACE -fsanitize=${sanitizer})
endforeach()
if(ATTUNE_FUZZ)
  target_compile_options(attune_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

find_program(ATTUNE_MOLD mold)
if(ATTUNE_MOLD)
  target_link_options(attune_flags INTERFACE -fuse-ld=mold)
endif()
find_program(ATTUNE_CCACHE ccache)
if(ATTUNE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${ATTUNE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${ATTUNE_CCACHE})
endif()

# A kernel's unit for a level above the baseline is named for it: foo_avx512.cc, foo_avx512_vnni.cc,
# foo_avx512_bf16.cc. Only such units may hold its instructions, and only code that device.isa chose calls them.
function(attune_isa_flags)
  # GCC 12 warns of its own headers' deliberately undefined registers (GCC bug 105593).
  set(v4 -march=x86-64-v4 -Wno-uninitialized)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    list(APPEND v4 -Wno-maybe-uninitialized)
  endif()
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_avx512\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${v4}")
    elseif(source MATCHES "_avx512_vnni\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${v4};-mavx512vnni")
    elseif(source MATCHES "_avx512_bf16\\.cc$")
      set_source_files_properties(${source} PROPERTIES COMPILE_OPTIONS "${v4};-mavx512vnni;-mavx512bf16")
    endif()
  endforeach()
endfunction()

function(attune_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LIBS" ${ARGN})
  if(NOT A_SOURCES)
    file(GLOB_RECURSE A_SOURCES CONFIGURE_DEPENDS *.cc)
    list(FILTER A_SOURCES EXCLUDE REGEX "_(test|fuzz|bench)\\.cc$")
  endif()
  attune_isa_flags(${A_SOURCES})
  add_library(attune_${name} STATIC ${A_SOURCES})
  list(TRANSFORM A_DEPS PREPEND attune_)
  target_link_libraries(attune_${name} PUBLIC attune_flags ${A_DEPS} PRIVATE ${A_LIBS})
endfunction()

function(attune_test name)
  if(NOT ATTUNE_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LIBS;LABELS" ${ARGN})
  if(NOT A_SOURCES)
    file(GLOB_RECURSE A_SOURCES CONFIGURE_DEPENDS *_test.cc)
  endif()
  if(NOT A_SOURCES)
    message(STATUS "no tests in ${name}")
    return()
  endif()
  if(NOT A_DEPS)
    set(A_DEPS ${name})
  endif()
  list(TRANSFORM A_DEPS PREPEND attune_)
  add_executable(attune_${name}_test ${A_SOURCES})
  target_link_libraries(attune_${name}_test PRIVATE ${A_DEPS} ${A_LIBS} GTest::gmock GTest::gtest_main)
  target_compile_definitions(attune_${name}_test PRIVATE ATTUNE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  gtest_discover_tests(attune_${name}_test TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST
                       PROPERTIES TIMEOUT 600 LABELS "${name};${A_LABELS}")
endfunction()

function(attune_fuzzer name)
  if(NOT ATTUNE_FUZZ)
    return()
  endif()
  cmake_parse_arguments(A "" "" "SOURCES;DEPS" ${ARGN})
  list(TRANSFORM A_DEPS PREPEND attune_)
  add_executable(attune_${name}_fuzz ${A_SOURCES})
  target_link_libraries(attune_${name}_fuzz PRIVATE ${A_DEPS})
  target_link_options(attune_${name}_fuzz PRIVATE -fsanitize=fuzzer)
  add_dependencies(fuzzers attune_${name}_fuzz)
endfunction()
