# `cmake --install`: the command line with its model, and the library for find_package(quantspec) and
# pkg-config. Nothing in it says where it lies, so the folder may be moved afterwards.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package ${PROJECT_BINARY_DIR}/package)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/quantspec)

install(TARGETS quantspec_library EXPORT quantspec
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT quantspec NAMESPACE quantspec:: FILE quantspec-targets.cmake
  DESTINATION ${config_dir})
configure_package_config_file(cmake/quantspec-config.cmake.in ${package}/quantspec-config.cmake
  INSTALL_DESTINATION ${config_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${package}/quantspec-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${package}/quantspec-config.cmake ${package}/quantspec-config-version.cmake
  DESTINATION ${config_dir})

foreach(folder CMAKE_INSTALL_PREFIX CMAKE_INSTALL_FULL_INCLUDEDIR)  # as quantspec.pc sees them
  cmake_path(RELATIVE_PATH ${folder} BASE_DIRECTORY ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig
    OUTPUT_VARIABLE from_pc_${folder})
endforeach()
list(JOIN QUANTSPEC_MODULES " " modules)
list(JOIN QUANTSPEC_LINK_FLAGS " " link_flags)
configure_file(cmake/quantspec.pc.in ${package}/quantspec.pc.in @ONLY)
file(GENERATE OUTPUT ${package}/quantspec.pc INPUT ${package}/quantspec.pc.in)
install(FILES ${package}/quantspec.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(QUANTSPEC_APPS)
  install(TARGETS quantspec_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  install(DIRECTORY models/pg-24m DESTINATION ${CMAKE_INSTALL_DATADIR}/quantspec/models)
endif()
