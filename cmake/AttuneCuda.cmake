# With ATTUNE_CUDA: nvcc, and
# attune_use_cuda(NAME)
#   The library attune_NAME's .cc files may call the CUDA runtime.
# attune_cuda_library(NAME SOURCES ... [DEPS ...] [ARCHS ...])
#   A static library of kernels (.cu), for ATTUNE_CUDA_ARCHS unless told.
# attune_gpu_test(NAME SOURCES ... DEPS ... [LINK_OPTIONS ...])
#   Tests that are skipped where no GPU is: part of attune_gpu_test, and on request a program attune_gpu_NAME_test.
# attune_gpu_test_program()
#   attune_gpu_test, all of them in one program, so that the kernels are in `gpu_bundle` once besides attune's.

set(ATTUNE_CUDA_ARCHS 90a CACHE STRING "GPU architectures to build for, e.g. 80;89;90a")
set(ATTUNE_CUDA_KERNELS core CACHE STRING "Attention kernels to build: core, or full (docs/cuda.md)")
set_property(CACHE ATTUNE_CUDA_KERNELS PROPERTY STRINGS core full)
if(NOT ATTUNE_CUDA_KERNELS MATCHES "^(core|full)$")
  message(FATAL_ERROR "ATTUNE_CUDA_KERNELS=${ATTUNE_CUDA_KERNELS}: there are core and full.")
endif()

find_program(ATTUNE_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
if(NOT ATTUNE_NVCC)
  message(FATAL_ERROR "ATTUNE_CUDA=ON needs nvcc, which is neither on the PATH nor in /usr/local/cuda/bin: install the CUDA "
                      "toolkit (13.0), or build without (-DATTUNE_CUDA=OFF).")
endif()
set(CMAKE_CUDA_COMPILER ${ATTUNE_NVCC})
set(CMAKE_CUDA_HOST_COMPILER ${CMAKE_CXX_COMPILER})
set(CMAKE_CUDA_ARCHITECTURES ${ATTUNE_CUDA_ARCHS})
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "nvcc ${CMAKE_CUDA_COMPILER_VERSION} (${ATTUNE_NVCC}) is too old: Attune needs CUDA 13.0.")
endif()
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)  # CMake 3.25 does not know that nvcc has it
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit 13.0 REQUIRED)
message(STATUS "CUDA ${CUDAToolkit_VERSION} for ${ATTUNE_CUDA_ARCHS}, ${ATTUNE_CUDA_KERNELS} kernels")

function(attune_use_cuda name)
  # Static: the binary starts where neither toolkit nor driver is. The runtime opens the driver itself.
  target_link_libraries(attune_${name} PRIVATE CUDA::cudart_static)
  list(JOIN ATTUNE_CUDA_ARCHS "," archs)  # CMake would cut the definition at a semicolon
  target_compile_definitions(attune_${name} PRIVATE "ATTUNE_CUDA_ARCHS=\"${archs}\"")
endfunction()

function(attune_cuda_library name)
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;ARCHS" ${ARGN})
  list(TRANSFORM A_DEPS PREPEND attune_)
  add_library(attune_${name} STATIC ${A_SOURCES})
  target_link_libraries(attune_${name} PUBLIC attune_flags ${A_DEPS} PRIVATE CUDA::cudart_static)
  if(A_ARCHS)
    set_target_properties(attune_${name} PROPERTIES CUDA_ARCHITECTURES "${A_ARCHS}")
  endif()
endfunction()

add_custom_target(gpu_bundle)

function(attune_gpu_test name)
  if(NOT ATTUNE_TESTS)
    return()
  endif()
  cmake_parse_arguments(A "" "" "SOURCES;DEPS;LINK_OPTIONS" ${ARGN})
  list(TRANSFORM A_DEPS PREPEND attune_)
  set(objects attune_gpu_${name}_objects)
  add_library(${objects} OBJECT ${A_SOURCES})
  target_link_libraries(${objects} PRIVATE ${A_DEPS} GTest::gmock GTest::gtest CUDA::cudart_static)
  target_compile_definitions(${objects} PRIVATE ATTUNE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
  set_property(GLOBAL APPEND PROPERTY ATTUNE_GPU_OBJECTS $<TARGET_OBJECTS:${objects}>)
  set_property(GLOBAL APPEND PROPERTY ATTUNE_GPU_DEPS ${A_DEPS})
  set_property(GLOBAL APPEND PROPERTY ATTUNE_GPU_LINK_OPTIONS ${A_LINK_OPTIONS})
  add_executable(attune_gpu_${name}_test EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${objects}>)
  target_link_libraries(attune_gpu_${name}_test PRIVATE ${A_DEPS} GTest::gmock GTest::gtest_main CUDA::cudart_static)
  target_link_options(attune_gpu_${name}_test PRIVATE ${A_LINK_OPTIONS})
endfunction()

function(attune_gpu_test_program)
  if(NOT ATTUNE_TESTS)
    return()
  endif()
  foreach(what OBJECTS DEPS LINK_OPTIONS)
    get_property(${what} GLOBAL PROPERTY ATTUNE_GPU_${what})
  endforeach()
  list(REMOVE_DUPLICATES DEPS)
  add_executable(attune_gpu_test ${OBJECTS})
  target_link_libraries(attune_gpu_test PRIVATE ${DEPS} GTest::gmock GTest::gtest_main CUDA::cudart_static)
  target_link_options(attune_gpu_test PRIVATE ${LINK_OPTIONS})
  gtest_discover_tests(attune_gpu_test TEST_PREFIX gpu. DISCOVERY_MODE PRE_TEST PROPERTIES TIMEOUT 600 LABELS gpu)
  attune_bundled(attune_gpu_test)
endfunction()

# The program finds what it links beside itself, in lib/, also what those libraries link (hence no RUNPATH).
function(attune_bundled target)
  set_target_properties(${target} PROPERTIES BUILD_RPATH "$ORIGIN/lib")
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  add_dependencies(gpu_bundle ${target})
endfunction()
