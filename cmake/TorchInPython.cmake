# Lets Libtorch.cmake find the torch of the active Python. Its folder is looked up without importing
# it: that would take seconds, and load what the build does not need.
if(NOT SLIMGRAD_LIBTORCH)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c
            "from importlib.util import find_spec; print(find_spec('torch').submodule_search_locations[0])"
    OUTPUT_VARIABLE SLIMGRAD_LIBTORCH_HINTS OUTPUT_STRIP_TRAILING_WHITESPACE
    RESULT_VARIABLE failed ERROR_QUIET)
  if(failed AND SKBUILD)
    message(FATAL_ERROR
      "slimgrad is built for the torch that is already in your environment, which pip hides from an "
      "isolated build. Please type: pip install torch scikit-build-core && "
      "pip install --no-build-isolation .")
  endif()
endif()
include(Libtorch)
if(SLIMGRAD_LIBTORCH_PROBLEM)
  message(FATAL_ERROR
    "slimgrad needs torch ${SLIMGRAD_OLDEST_TORCH} or newer: ${SLIMGRAD_LIBTORCH_PROBLEM}. Install it "
    "into the Python that CMake uses (pip install torch==2.13.0 with ${Python3_EXECUTABLE}), name a "
    "libtorch with -DSLIMGRAD_LIBTORCH=FOLDER, or build the core alone with -DSLIMGRAD_TORCH=OFF.")
endif()
if(SLIMGRAD_LIBTORCH_VERSION VERSION_LESS SLIMGRAD_OLDEST_TORCH)
  message(FATAL_ERROR "slimgrad needs torch ${SLIMGRAD_OLDEST_TORCH} or newer, found "
                      "${SLIMGRAD_LIBTORCH_VERSION} in ${SLIMGRAD_LIBTORCH_ROOT}.")
endif()
# Releases of one series (2.13.0, 2.13.1) share an ABI, as do their CPU and CUDA builds.
string(REGEX MATCH "^[0-9]+\\.[0-9]+" SLIMGRAD_TORCH_SERIES ${SLIMGRAD_LIBTORCH_VERSION})
message(STATUS "torch ${SLIMGRAD_LIBTORCH_VERSION}: ${SLIMGRAD_LIBTORCH_ROOT}")
