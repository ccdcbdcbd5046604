# A room is a folder of src/: one static library and, beside it, one test binary from *_test.cc.
# Files are found by name, so adding one needs no edit here. CUDA: a room that a build with
# QUANTSPEC_HAS_CUDA has, of *.cu files too.
function(quantspec_room name folder)
  cmake_parse_arguments(ROOM "CUDA" "" "DEPENDS" ${ARGN})
  if(ROOM_CUDA AND NOT QUANTSPEC_HAS_CUDA)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cc ${folder}/*.cu)
  file(GLOB tests CONFIGURE_DEPENDS ${folder}/*_test.cc)
  if(tests)
    list(REMOVE_ITEM sources ${tests})
  endif()
  if(NOT sources)
    return()
  endif()
  add_library(qs_${name} STATIC ${sources})
  if(QUANTSPEC_UNITY AND NOT name MATCHES "^(comm|cpu|speculative|net|bench|eval)$")
    set_target_properties(qs_${name} PROPERTIES UNITY_BUILD ON)  # in those, files share names
  endif()
  target_include_directories(qs_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src)
  if(ROOM_CUDA)
    target_compile_options(qs_${name} PRIVATE
      "$<$<COMPILE_LANGUAGE:CUDA>:${QUANTSPEC_CUDA_OPTIONS}>")
  endif()
  target_link_libraries(qs_${name} PUBLIC ${ROOM_DEPENDS})
  if(QUANTSPEC_TESTS AND tests)
    quantspec_test(${name}_test SOURCES ${tests} DEPENDS qs_${name})
  endif()
endfunction()

# What spends no time in its own code takes a third less to compile.
function(quantspec_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# What reads bytes of others, be they of files or of clients: a write beyond an object, and an index
# beyond a vector, end the program.
function(quantspec_harden)
  foreach(target IN LISTS ARGN)
    target_compile_options(${target} PRIVATE -fstack-protector-strong -D_GLIBCXX_ASSERTIONS
      "$<$<CONFIG:Release>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=3>")
  endforeach()
endfunction()

# The main() of all tests. What most of them include is compiled with it, once: a quarter of the time
# that they take.
function(quantspec_test_main)
  add_library(qs_test_main STATIC ${PROJECT_SOURCE_DIR}/tests/main.cc)
  quantspec_compile_quickly(qs_test_main)
  target_link_libraries(qs_test_main PRIVATE fmt::fmt GTest::gmock)
  target_precompile_headers(qs_test_main PRIVATE <gmock/gmock.h> <gtest/gtest.h> <fmt/format.h>
                            <filesystem> <fstream>)
endfunction()

function(quantspec_test name)
  find_package(rapidcheck REQUIRED)
  cmake_parse_arguments(TEST "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${TEST_SOURCES})
  quantspec_compile_quickly(${name})
  target_precompile_headers(${name} REUSE_FROM qs_test_main)
  target_link_libraries(${name} PRIVATE ${TEST_DEPENDS} qs_testing qs_test_main rapidcheck
                        GTest::gtest)
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 1800)
endfunction()
