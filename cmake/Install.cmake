# Two ways in: `cmake --install` for find_package(slimgrad) in C++, and the Python wheel, into which
# scikit-build-core installs the same files below the package (`python -m slimgrad --cmake-dir`).
include(CMakePackageConfigHelpers)

if(SKBUILD)
  set(prefix ${SKBUILD_PROJECT_NAME}/)
  set(programs_dir ${SKBUILD_SCRIPTS_DIR})
else()
  set(prefix "")
  set(programs_dir bin)
endif()
if(SLIMGRAD_PROGRAM)
  install(TARGETS slimgrad-program DESTINATION ${programs_dir})
endif()
set(package_dir ${prefix}lib/cmake/slimgrad)
# Where torch was at build time: the last place to look for it. What goes to other machines does not
# speak of this one.
set(recorded_libtorch "")
if(SLIMGRAD_TORCH AND NOT SLIMGRAD_RELOCATABLE)
  set(recorded_libtorch "${SLIMGRAD_LIBTORCH_ROOT}")
endif()

if(SLIMGRAD_TORCH)
  if(SKBUILD)
    # Python has loaded libtorch before it loads us, and it lies wherever that Python keeps torch.
    set_target_properties(slimgrad_torch PROPERTIES INSTALL_RPATH "$ORIGIN/../../torch/lib")
    # A program starts without Python's help: from the folder of the scripts it goes to that of the
    # packages, as Python lays them out; failing that, to the torch that we were built with.
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c "import os.path as p, sysconfig as s; \
print(p.relpath(s.get_path('platlib'), s.get_path('scripts')))"
      OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    set(train_rpath "$ORIGIN/${packages}/${prefix}lib" "$ORIGIN/${packages}/torch/lib")
    if(recorded_libtorch)
      list(APPEND train_rpath "${recorded_libtorch}/lib")
    else()
      # A wheel serves several Pythons, each of which has a folder of its own name.
      foreach(minor RANGE 10 15)
        set(packages "../lib/python3.${minor}/site-packages")
        list(APPEND train_rpath "$ORIGIN/${packages}/${prefix}lib" "$ORIGIN/${packages}/torch/lib")
      endforeach()
    endif()
  else()
    set_target_properties(slimgrad_torch PROPERTIES INSTALL_RPATH "${SLIMGRAD_LIBTORCH_ROOT}/lib")
    set(train_rpath "$ORIGIN/../lib" "${SLIMGRAD_LIBTORCH_ROOT}/lib")
  endif()
  if(SKBUILD)
    # Python asks before it loads the library: a library built for another torch fails obscurely.
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/_built_for.py @ONLY CONTENT
         "\"\"\"The releases of torch that the op library was built for.\"\"\"\n\nTORCH_SERIES = \"@SLIMGRAD_TORCH_SERIES@\"\n")
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_built_for.py DESTINATION ${prefix})
  endif()
  set_target_properties(slimgrad-train PROPERTIES INSTALL_RPATH "${train_rpath}")
  install(TARGETS slimgrad-train DESTINATION ${programs_dir})
endif()
# Two sets, so that the core can be found where there is no torch.
install(TARGETS slimgrad EXPORT slimgrad-targets ARCHIVE DESTINATION ${prefix}lib
        INCLUDES DESTINATION ${prefix}include)
install(EXPORT slimgrad-targets NAMESPACE slimgrad:: DESTINATION ${package_dir})
if(SLIMGRAD_TORCH)
  install(TARGETS slimgrad_torch EXPORT slimgrad-torch-targets LIBRARY DESTINATION ${prefix}lib
          INCLUDES DESTINATION ${prefix}include)
  install(EXPORT slimgrad-torch-targets NAMESPACE slimgrad:: DESTINATION ${package_dir})
endif()
install(DIRECTORY include/slimgrad DESTINATION ${prefix}include)
configure_package_config_file(cmake/slimgrad-config.cmake.in slimgrad-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(slimgrad-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/slimgrad-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/slimgrad-config-version.cmake
              ${CMAKE_CURRENT_SOURCE_DIR}/cmake/Libtorch.cmake
        DESTINATION ${package_dir})
