# quantspec_commit(TARGET FILE): TARGET has the source FILE, which defines quantspec::cli::kCommit, the
# git commit of the tree that it is built from. This file is also the script that writes FILE, in
# every build, since commits come and go without a new configuration. FILE changes only when the
# commit does: other builds compile and link nothing for it.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(QUANTSPEC_COMMIT_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
  function(quantspec_commit target file)
    add_custom_target(${target}_commit
      COMMAND ${CMAKE_COMMAND} -DSOURCE=${PROJECT_SOURCE_DIR} -DFILE=${file}
              -P ${QUANTSPEC_COMMIT_SCRIPT}
      BYPRODUCTS ${file} VERBATIM)
    target_sources(${target} PRIVATE ${file})
    add_dependencies(${target} ${target}_commit)
  endfunction()
  return()
endif()

cmake_minimum_required(VERSION 3.25)

# The output of git in SOURCE, or NOTFOUND. Its variables may stand for another repository, that of a
# hook which runs this.
foreach(variable GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_PREFIX)
  unset(ENV{${variable}})
endforeach()
function(git output)
  execute_process(COMMAND git --no-optional-locks -C ${SOURCE} ${ARGN} OUTPUT_VARIABLE text
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(failed)
    set(text NOTFOUND)
  endif()
  set(${output} "${text}" PARENT_SCOPE)
endfunction()

set(commit unknown)
git(prefix rev-parse --show-prefix)
git(head rev-parse --short=12 HEAD)
# A prefix: SOURCE is a folder of another project's repository, which has other commits.
if(head AND prefix STREQUAL "")
  # In what the program is made of: documents are written from what it measures.
  git(changes status --porcelain -- CMakeLists.txt cmake src apps)
  set(commit ${head})
  if(changes)
    string(APPEND commit -dirty)
  endif()
endif()
file(CONFIGURE OUTPUT ${FILE} @ONLY CONTENT [[
namespace quantspec::cli {
extern const char* const kCommit;
const char* const kCommit = "@commit@";
}  // namespace quantspec::cli
]])
