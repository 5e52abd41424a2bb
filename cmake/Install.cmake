# Two ways in: `cmake --install` for find_package(slimgrad) in C++, and the Python wheel, into which
# scikit-build-core installs the same files below the package (`python -m slimgrad --cmake-dir`).
include(CMakePackageConfigHelpers)

if(SKBUILD)
  set(prefix ${SKBUILD_PROJECT_NAME}/)
  install(TARGETS slimgrad-program DESTINATION ${SKBUILD_SCRIPTS_DIR})
else()
  set(prefix "")
  install(TARGETS slimgrad-program DESTINATION bin)
endif()
set(package_dir ${prefix}lib/cmake/slimgrad)

set(installed_targets slimgrad)
if(SLIMGRAD_TORCH)
  list(APPEND installed_targets slimgrad_torch)
  if(SKBUILD)
    # Python has loaded libtorch before it loads us, and it lies wherever that Python keeps torch.
    set_target_properties(slimgrad_torch PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")
  else()
    set_target_properties(slimgrad_torch PROPERTIES INSTALL_RPATH "${TORCH_INSTALL_PREFIX}/lib")
  endif()
endif()
install(TARGETS ${installed_targets} EXPORT slimgrad-targets
        ARCHIVE DESTINATION ${prefix}lib LIBRARY DESTINATION ${prefix}lib
        INCLUDES DESTINATION ${prefix}include)
install(DIRECTORY include/slimgrad DESTINATION ${prefix}include)
install(EXPORT slimgrad-targets NAMESPACE slimgrad:: DESTINATION ${package_dir})
configure_package_config_file(cmake/slimgrad-config.cmake.in slimgrad-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(slimgrad-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/slimgrad-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/slimgrad-config-version.cmake
        DESTINATION ${package_dir})
