# QUANTSPEC_FUZZ=ON: the whole tree is instrumented, so that libFuzzer sees the branches of the
# libraries that its targets call. `fuzzer-no-link` leaves main() alone: programs and tests of the
# same build still link, and run under AddressSanitizer and UBSan.
if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang" OR CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
  message(FATAL_ERROR "QUANTSPEC_FUZZ needs clang (16 or later) for libFuzzer, not "
                      "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}: "
                      "use `cmake --preset fuzz` in a fresh folder")
endif()
# For the pragmas that silence warnings which only g++ has; and because clang sees what libstdc++ 12
# deprecates inside libstdc++ itself (std::stable_sort).
add_compile_options(-Wno-unknown-warning-option -Wno-deprecated-declarations)
set(QUANTSPEC_SANITIZE "address,undefined,fuzzer-no-link")
