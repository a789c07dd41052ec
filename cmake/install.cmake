# Installs the library, its headers, the CMake package `thimble` and the pkg-config file.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/thimble)

install(TARGETS thimble EXPORT thimbleTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET thimble_program)
  set_target_properties(thimble_program PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS thimble_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(layer IN LISTS thimble_layers)
  install(DIRECTORY ${layer} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/thimble
          FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh")
endforeach()
install(FILES ${thimble_include_dir}/thimble/version.h ${PROJECT_SOURCE_DIR}/thimble.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/thimble)

# Users of a static library link its dependencies.
get_target_property(library_type thimble TYPE)
set(thimble_needs_cuda FALSE)
set(thimble_is_static FALSE)
set(pc_libs "")
set(pc_requires "")
if(library_type STREQUAL "STATIC_LIBRARY")
  set(thimble_is_static TRUE)
  set(thimble_needs_cuda ${thimble_cuda})
  set(pc_requires "zlib libutf8proc")
  string(APPEND pc_libs " -pthread")
  if(thimble_cuda)
    string(APPEND pc_libs " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
  endif()
endif()

configure_package_config_file(cmake/thimbleConfig.cmake.in ${PROJECT_BINARY_DIR}/thimbleConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/thimbleConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT thimbleTargets NAMESPACE thimble:: DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/thimbleConfig.cmake ${PROJECT_BINARY_DIR}/thimbleConfigVersion.cmake
              cmake/FindUtf8proc.cmake
        DESTINATION ${package_dir})

# A path from the pkg-config file to the prefix lets an installed tree be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(pc_prefix ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH pc_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  set(pc_prefix "\${pcfiledir}/${pc_prefix}")
endif()
configure_file(cmake/thimble.pc.in ${PROJECT_BINARY_DIR}/thimble.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/thimble.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
