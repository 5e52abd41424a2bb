# slimgrad::libtorch: torch's own libraries and headers, from its wheel or from a libtorch archive.
#
# Not find_package(Torch): the CMake files of a CUDA build want a CUDA toolkit, which most machines
# that have such a build lack and which nothing of ours needs. Three libraries and two include
# folders are all there is to it, and they lie at the same places in every build.
#
# Where torch is looked for, in this order: SLIMGRAD_LIBTORCH, the folder with its include/ and lib/;
# what an earlier find_package(Torch) found; Torch_DIR and CMAKE_PREFIX_PATH, as one would set them
# for find_package(Torch); the folders in SLIMGRAD_LIBTORCH_HINTS.
#
# Sets SLIMGRAD_LIBTORCH_ROOT and SLIMGRAD_LIBTORCH_VERSION, or SLIMGRAD_LIBTORCH_PROBLEM to a
# sentence if there is none. Installed beside slimgrad-config.cmake, which includes it too.

# The folder above `path` that holds torch: itself, or that of share/cmake or share/cmake/Torch.
function(slimgrad_libtorch_above path result)
  foreach(up "" "/../.." "/../../..")
    if(EXISTS "${path}${up}/include/torch/library.h" AND
       EXISTS "${path}${up}/lib/libtorch_cpu.so")
      get_filename_component(root "${path}${up}" ABSOLUTE)
      set(${result} ${root} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  set(${result} "" PARENT_SCOPE)
endfunction()

function(slimgrad_find_libtorch)
  set(folders ${SLIMGRAD_LIBTORCH})
  if(NOT folders)
    string(REPLACE ":" ";" from_environment "$ENV{CMAKE_PREFIX_PATH}")
    set(folders ${TORCH_INSTALL_PREFIX} ${Torch_DIR} ${CMAKE_PREFIX_PATH} ${from_environment}
                ${SLIMGRAD_LIBTORCH_HINTS})
  endif()
  foreach(folder ${folders})
    slimgrad_libtorch_above(${folder} root)
    if(root)
      break()
    endif()
  endforeach()
  if(NOT root)
    list(JOIN folders ", " folders)
    set(SLIMGRAD_LIBTORCH_PROBLEM "no libtorch in these folders: ${folders}" PARENT_SCOPE)
    return()
  endif()
  if(NOT EXISTS "${root}/include/torch/headeronly/version.h")
    set(SLIMGRAD_LIBTORCH_PROBLEM "the torch in ${root} is too old" PARENT_SCOPE)
    return()
  endif()

  file(STRINGS "${root}/include/torch/headeronly/version.h" lines
       REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX MATCHALL "[0-9]+" version "${lines}")
  list(JOIN version "." version)

  if(NOT TARGET slimgrad::libtorch)
    add_library(slimgrad::libtorch INTERFACE IMPORTED GLOBAL)
    # libtorch.so has no symbol that the linker would miss; it is what brings a CUDA build's kernels
    # into a program.
    set_target_properties(slimgrad::libtorch PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include"
      INTERFACE_LINK_LIBRARIES "${root}/lib/libtorch_cpu.so;${root}/lib/libc10.so;\
-Wl,--push-state,--no-as-needed,${root}/lib/libtorch.so,--pop-state"
      INTERFACE_LINK_DIRECTORIES "${root}/lib")
  endif()
  set(SLIMGRAD_LIBTORCH_ROOT ${root} PARENT_SCOPE)
  set(SLIMGRAD_LIBTORCH_VERSION ${version} PARENT_SCOPE)
endfunction()

slimgrad_find_libtorch()
