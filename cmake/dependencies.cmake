# What the library links, for this build, for quantspec-config.cmake and for quantspec.pc: packages of
# CMake, modules of pkg-config (PkgConfig::QUANTSPEC_<module>), and the linker's flags for packages
# that pkg-config does not know.
set(QUANTSPEC_PACKAGES fmt nlohmann_json spdlog Threads)
set(QUANTSPEC_MODULES sentencepiece libpcre2-8 libutf8proc libxxhash)
set(QUANTSPEC_LINK_FLAGS -pthread)
include(cmake/gemm.cmake)
if(QUANTSPEC_HAS_CUDA)
  list(APPEND QUANTSPEC_PACKAGES CUDAToolkit)
  list(APPEND QUANTSPEC_LINK_FLAGS -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl)
endif()

foreach(package IN LISTS QUANTSPEC_PACKAGES)
  find_package(${package} REQUIRED)
endforeach()
find_package(PkgConfig REQUIRED)
foreach(module IN LISTS QUANTSPEC_MODULES)
  pkg_check_modules(QUANTSPEC_${module} REQUIRED IMPORTED_TARGET ${module})
endforeach()

if(QUANTSPEC_APPS)
  find_package(CLI11 REQUIRED)
  find_package(ZLIB REQUIRED)
  pkg_check_modules(QUANTSPEC_libedit REQUIRED IMPORTED_TARGET libedit)
endif()
if(QUANTSPEC_APPS AND QUANTSPEC_SERVER)
  find_package(Boost 1.81 REQUIRED)  # headers alone: Asio and Beast, in src/net
endif()
