# Puts the CMake files of the torch in the active Python on CMAKE_PREFIX_PATH, unless the caller has
# already named a libtorch.
if(NOT Torch_DIR)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE torch_prefix OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed ERROR_QUIET)
  if(failed)
    message(FATAL_ERROR "No torch in ${Python3_EXECUTABLE}: pip install torch==2.13.0 there, name a "
                        "libtorch with -DCMAKE_PREFIX_PATH=..., or build the core alone with "
                        "-DSLIMGRAD_TORCH=OFF.")
  endif()
  list(APPEND CMAKE_PREFIX_PATH ${torch_prefix})
endif()
