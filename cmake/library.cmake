# quantspec::quantspec, the library as programs outside src/ see it, in this build, in another
# project's or installed: one archive of the rooms that qs_engine needs, <quantspec/engine.h> and
# <quantspec/fields.h>.
#
# Its headers are engine/engine.h, engine/fields.h (what errors are about) and those of src/ that they
# need, copied to QUANTSPEC_INCLUDE_DIR with "x/y.h" spelt "quantspec/x/y.h". So every name begins with
# quantspec/. With src/ itself in the path of another project, its base/error.h could be taken for ours,
# or ours for its own.
set(QUANTSPEC_INCLUDE_DIR ${PROJECT_BINARY_DIR}/include)

# quantspec_headers(OUT HEADER...): copies headers of src/ and those that they need; sets OUT to the copies.
# When one changes CMake runs again, before anything that includes a copy is compiled.
function(quantspec_headers out)
  set(queue ${ARGN})
  set(seen "")
  set(copies "")
  while(queue)
    list(POP_FRONT queue header)
    if(header IN_LIST seen)
      continue()
    endif()
    set(source ${PROJECT_SOURCE_DIR}/src/${header})
    set(copy ${QUANTSPEC_INCLUDE_DIR}/quantspec/${header})
    file(READ ${source} text)
    string(REGEX MATCHALL "#include \"[^\"]+\"" includes "${text}")
    list(TRANSFORM includes REPLACE "#include \"(.+)\"" "\\1")
    string(REPLACE "#include \"" "#include \"quantspec/" text "${text}")
    file(CONFIGURE OUTPUT ${copy} CONTENT "${text}" @ONLY)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    list(APPEND queue ${includes})
    list(APPEND seen ${header})
    list(APPEND copies ${copy})
  endwhile()
  set(${out} ${copies} PARENT_SCOPE)
endfunction()

# quantspec_rooms(ROOMS LIBRARIES ROOM): sets ROOMS to the room and those that it links, and LIBRARIES
# to what they link besides.
function(quantspec_rooms rooms_out libraries_out room)
  set(queue ${room})
  set(rooms "")
  set(libraries "")
  while(queue)
    list(POP_FRONT queue item)
    if(NOT item MATCHES "^qs_")
      list(APPEND libraries ${item})
    elseif(NOT item IN_LIST rooms)
      list(APPEND rooms ${item})
      get_target_property(links ${item} LINK_LIBRARIES)
      list(APPEND queue ${links})
    endif()
  endwhile()
  list(REMOVE_DUPLICATES libraries)
  set(${rooms_out} ${rooms} PARENT_SCOPE)
  set(${libraries_out} ${libraries} PARENT_SCOPE)
endfunction()

quantspec_headers(headers engine/engine.h engine/fields.h engine/request_loop.h)
foreach(door engine fields)
  list(APPEND headers ${QUANTSPEC_INCLUDE_DIR}/quantspec/${door}.h)
  file(CONFIGURE OUTPUT ${QUANTSPEC_INCLUDE_DIR}/quantspec/${door}.h
    CONTENT "#pragma once\n\n#include \"quantspec/engine/${door}.h\"\n")
endforeach()
set(version ${QUANTSPEC_INCLUDE_DIR}/quantspec/version.h)
configure_file(cmake/version.h.in ${version} @ONLY)

quantspec_rooms(rooms libraries qs_engine)
list(TRANSFORM rooms REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
add_library(quantspec_library STATIC ${objects})
add_library(quantspec::quantspec ALIAS quantspec_library)
set_target_properties(quantspec_library PROPERTIES
  OUTPUT_NAME quantspec EXPORT_NAME quantspec LINKER_LANGUAGE CXX
  SYSTEM ON)  # warnings in our headers are ours to see
target_sources(quantspec_library PUBLIC
  FILE_SET HEADERS BASE_DIRS ${QUANTSPEC_INCLUDE_DIR} FILES ${version} ${headers})
target_compile_features(quantspec_library PUBLIC cxx_std_20)
set(seen_in_headers fmt::fmt nlohmann_json::nlohmann_json)
list(REMOVE_ITEM libraries ${seen_in_headers})
target_link_libraries(quantspec_library PUBLIC ${seen_in_headers} PRIVATE ${libraries})
