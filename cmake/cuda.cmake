# QUANTSPEC_CUDA: AUTO builds the CUDA backend where there is a toolkit, ON insists, OFF leaves it out.
# Sets QUANTSPEC_HAS_CUDA.
set(QUANTSPEC_CUDA AUTO CACHE STRING "The CUDA backend: AUTO, ON or OFF")
set(QUANTSPEC_CUDA_ARCHITECTURES AUTO CACHE STRING
    "What its kernels are compiled for, as 80;90a;89-virtual (PTX). AUTO: this machine's first GPU, or ALL (80;86;89;90a) where it has none")
set_property(CACHE QUANTSPEC_CUDA PROPERTY STRINGS AUTO ON OFF)

set(QUANTSPEC_HAS_CUDA OFF)
if(NOT QUANTSPEC_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "QUANTSPEC_CUDA=${QUANTSPEC_CUDA}: there are AUTO, ON and OFF")
endif()
if(QUANTSPEC_CUDA STREQUAL "OFF" OR CMAKE_CROSSCOMPILING OR QUANTSPEC_SANITIZE)
  if(QUANTSPEC_CUDA STREQUAL "ON")
    message(FATAL_ERROR "QUANTSPEC_CUDA=ON: not when cross-compiling or with sanitizers")
  endif()
  return()
endif()

include(CheckLanguage)
list(APPEND CMAKE_PROGRAM_PATH /usr/local/cuda/bin)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  set(CMAKE_CUDA_ARCHITECTURES OFF)  # -gencode below: CMake 3.25 does not know 90a
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # nor what every nvcc from 12 on calls C++20
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit 12.8)
endif()
if(QUANTSPEC_CUDA_ARCHITECTURES STREQUAL "AUTO")
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
                  OUTPUT_VARIABLE architectures RESULT_VARIABLE failed ERROR_QUIET)
  if(failed)
    set(architectures ALL)
  else()
    string(REGEX MATCH "[0-9.]+" architectures "${architectures}")
    string(REPLACE "." "" architectures "${architectures}")
  endif()
else()
  set(architectures ${QUANTSPEC_CUDA_ARCHITECTURES})
endif()
if(architectures STREQUAL "ALL")
  set(architectures 80 86 89 90a)
endif()
if(NOT CUDAToolkit_FOUND)
  if(QUANTSPEC_CUDA STREQUAL "ON")
    message(FATAL_ERROR "QUANTSPEC_CUDA=ON: no CUDA toolkit of version 12.8 or later was found; "
                        "CUDACXX=/path/to/nvcc names one")
  endif()
  message(NOTICE "No CUDA toolkit of version 12.8 or later: the CUDA backend is left out")
  return()
endif()

set(QUANTSPEC_HAS_CUDA ON)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
# NOTE: FMT_USE_CONSTEXPR: fmt 9 takes nvcc for a compiler that cannot check its format strings.
# NOTE: -fmad=false for the reason of -ffp-contract=off: kernels say fmaf where they mean it.
set(QUANTSPEC_CUDA_OPTIONS --expt-relaxed-constexpr -fmad=false -lineinfo --threads=2
    -DFMT_USE_CONSTEXPR=1)
list(TRANSFORM architectures REPLACE "^90$" 90a)
if(architectures MATCHES "90a?-virtual")
  message(FATAL_ERROR "QUANTSPEC_CUDA_ARCHITECTURES=${architectures}: kernels for 9.0 need 90a, and no other GPU takes "
                      "its PTX; 90a is for 9.0, 89-virtual for later GPUs")
endif()
foreach(architecture IN LISTS architectures)
  set(code sm_${architecture})
  if(architecture MATCHES "^([0-9]+)-virtual$")  # PTX, which the driver of any later GPU compiles
    set(architecture ${CMAKE_MATCH_1})
    set(code compute_${architecture})
  endif()
  list(APPEND QUANTSPEC_CUDA_OPTIONS "SHELL:-gencode arch=compute_${architecture},code=${code}")
endforeach()
message(STATUS "CUDA backend: ${CMAKE_CUDA_COMPILER} ${CUDAToolkit_VERSION}, for "
               "${architectures}")
