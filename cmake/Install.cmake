# Two ways in: `cmake --install` for find_package(slimgrad) in C++, and the Python wheel, into which
# scikit-build-core installs the same library below the package (`python -m slimgrad --cmake-dir`).
# One build tree serves both: what only a wheel has is the component `python`, which a plain
# `cmake --install` leaves out, and pyproject.toml names the components of a wheel.
include(CMakePackageConfigHelpers)

set(package_dir lib/cmake/slimgrad)
set(programs)
if(SLIMGRAD_PROGRAM)
  list(APPEND programs slimgrad-program)
endif()
# Where torch was at build time: the last place to look for it. What goes to other machines does not
# speak of this one.
set(recorded_libtorch "")
if(SLIMGRAD_TORCH AND NOT SLIMGRAD_RELOCATABLE)
  set(recorded_libtorch "${SLIMGRAD_LIBTORCH_ROOT}")
endif()

if(SLIMGRAD_TORCH)
  list(APPEND programs slimgrad-train)
  set(library_rpath)
  set(train_rpath "$ORIGIN/../lib")
  if(SKBUILD)
    # Python has loaded libtorch before it loads us, and it lies wherever that Python keeps torch.
    list(APPEND library_rpath "$ORIGIN/../../torch/lib")
    # A program starts without Python's help: from the folder of the scripts it goes to that of the
    # packages, as Python lays them out; failing that, to the torch that we were built with.
    find_package(Python3 REQUIRED COMPONENTS Interpreter)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c "import os.path as p, sysconfig as s; \
print(p.relpath(s.get_path('platlib'), s.get_path('scripts')))"
      OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
    list(APPEND train_rpath "$ORIGIN/${packages}/slimgrad/lib" "$ORIGIN/${packages}/torch/lib")
    if(NOT recorded_libtorch)
      # A wheel serves several Pythons, each of which has a folder of its own name.
      foreach(minor RANGE 10 15)
        set(packages "../lib/python3.${minor}/site-packages")
        list(APPEND train_rpath "$ORIGIN/${packages}/slimgrad/lib" "$ORIGIN/${packages}/torch/lib")
      endforeach()
    endif()
    # Python asks before it loads the library: a library built for another torch fails obscurely.
    file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/_built_for.py @ONLY CONTENT
         "\"\"\"The releases of torch that the op library was built for.\"\"\"\n\nTORCH_SERIES = \"@SLIMGRAD_TORCH_SERIES@\"\n")
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/_built_for.py DESTINATION . COMPONENT python
            EXCLUDE_FROM_ALL)
  endif()
  if(recorded_libtorch)
    list(APPEND library_rpath "${recorded_libtorch}/lib")
    list(APPEND train_rpath "${recorded_libtorch}/lib")
  endif()
  set_target_properties(slimgrad_torch PROPERTIES INSTALL_RPATH "${library_rpath}")
  set_target_properties(slimgrad-train PROPERTIES INSTALL_RPATH "${train_rpath}")
endif()

if(programs)
  install(TARGETS ${programs} DESTINATION bin COMPONENT programs)
endif()
if(programs AND SKBUILD)
  # A folder that is pip's, and gone when pip has ended.
  install(TARGETS ${programs} DESTINATION ${SKBUILD_SCRIPTS_DIR} COMPONENT python EXCLUDE_FROM_ALL)
endif()
# Two sets, so that the core can be found where there is no torch.
install(TARGETS slimgrad EXPORT slimgrad-targets ARCHIVE DESTINATION lib COMPONENT library
        INCLUDES DESTINATION include)
install(EXPORT slimgrad-targets NAMESPACE slimgrad:: DESTINATION ${package_dir} COMPONENT library)
if(SLIMGRAD_TORCH)
  install(TARGETS slimgrad_torch EXPORT slimgrad-torch-targets LIBRARY DESTINATION lib
          COMPONENT library INCLUDES DESTINATION include)
  install(EXPORT slimgrad-torch-targets NAMESPACE slimgrad:: DESTINATION ${package_dir}
          COMPONENT library)
endif()
install(DIRECTORY include/slimgrad DESTINATION include COMPONENT library)
configure_package_config_file(cmake/slimgrad-config.cmake.in slimgrad-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(slimgrad-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/slimgrad-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/slimgrad-config-version.cmake
              ${CMAKE_CURRENT_SOURCE_DIR}/cmake/Libtorch.cmake
        DESTINATION ${package_dir} COMPONENT library)
