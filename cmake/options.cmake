# How our own code is compiled, at the top of a build or inside another project. Those who link the
# library get none of it.
#
# NOTE: -ffp-contract=off: a row of the target pass has the same bits whatever the number of rows
# beside it (docs/design.md, section 3). A compiler that fuses a*b+c in one instantiation of a template and
# not in another would break that; kernels say fma where they mean it. -fno-fast-math: another project's
# flags may ask for it.
set(cxx_options -fno-fast-math -ffp-contract=off)
if(PROJECT_IS_TOP_LEVEL)
  list(APPEND cxx_options -Wall -Wextra -Wno-missing-field-initializers)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
    # NOTE: g++ 12 -O3 warns falsely inside fmt and std::string (GCC bugs 105329 and 105651).
    list(APPEND cxx_options -Wno-restrict -Wno-stringop-overflow)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    # NOTE: g++ 13 takes a reference from a call with a temporary argument for one to the temporary.
    list(APPEND cxx_options -Wno-dangling-reference)
  endif()
else()  # the warnings, and -Werror, that another project asks for are about its own code
  add_compile_options(-w)
endif()
if(QUANTSPEC_WERROR)
  list(APPEND cxx_options -Werror)
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()
add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${cxx_options}>" -UNDEBUG)  # checks stay on
if(QUANTSPEC_FUZZ)
  include(cmake/fuzz.cmake)
endif()
if(QUANTSPEC_SANITIZE)
  add_compile_options(-fsanitize=${QUANTSPEC_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${QUANTSPEC_SANITIZE})
endif()
