# The kernels of GPUs (src/device/kernels.cu) as code that slimgrad_torch embeds: by nvcc for the
# architectures below and as PTX, which later ones compile; by clang as PTX 7.0, which older drivers
# and GPUs understand, and which is all there is where nvcc is not. Nobody who uses the library needs
# either.
#
# SLIMGRAD_DEVICE says whether. Unless it is given, it is ON for a CUDA build of torch alone: others
# need no device code, and building it takes a minute and a half of a core.
#
# nvcc: SLIMGRAD_NVCC, the toolkit's, or that of PyPI's nvidia-cuda-nvcc, nvidia-nvvm,
# nvidia-cuda-crt and nvidia-cuda-runtime (13.0) in the Python that CMake uses.

set(SLIMGRAD_DEVICE_ARCHITECTURES 80 86 89 90 100 120)

if(NOT DEFINED SLIMGRAD_DEVICE)
  set(SLIMGRAD_DEVICE OFF)
  if(EXISTS ${SLIMGRAD_LIBTORCH_ROOT}/lib/libtorch_cuda.so)
    set(SLIMGRAD_DEVICE ON)
  endif()
endif()

# Arithmetic is that of the CPU: no contraction to fused multiply-adds, no flushing of subnormals,
# divisions and square roots rounded once. A call of a function of the host is an error.
set(slimgrad_device_source ${PROJECT_SOURCE_DIR}/src/device/kernels.cu)
set(slimgrad_device_includes -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include)
set(slimgrad_nvcc_flags -std=c++20 -O3 --expt-relaxed-constexpr -fmad=false -ftz=false -prec-div=true
    -prec-sqrt=true -Werror cross-execution-space-call,all-warnings -diag-suppress 445,1675
    ${slimgrad_device_includes})
set(slimgrad_clang_flags -std=c++20 -O3 -ffp-contract=off --cuda-device-only -S
    -Wno-pass-failed -Wno-unknown-cuda-version -Wno-unused-command-line-argument
    -include ${PROJECT_SOURCE_DIR}/src/device/clang_gpu.h ${slimgrad_device_includes})
set(slimgrad_ptx_flags -x cuda -nocudainc -nocudalib --cuda-gpu-arch=sm_70
    -Xclang -target-feature -Xclang +ptx70)
set(slimgrad_amd_flags -x hip -nogpuinc -nogpulib --offload-arch=gfx90a)

if(NOT SLIMGRAD_NVCC AND Python3_EXECUTABLE)
  execute_process(COMMAND ${Python3_EXECUTABLE} -c
                          "import sysconfig; print(sysconfig.get_path('platlib'))"
                  OUTPUT_VARIABLE slimgrad_platlib OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_program(SLIMGRAD_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda
             ${slimgrad_platlib}/nvidia/cu13 PATH_SUFFIXES bin DOC "Compiles device code")
find_program(SLIMGRAD_GPU_CLANG clang++ DOC "Compiles device code for older drivers")
mark_as_advanced(SLIMGRAD_NVCC SLIMGRAD_GPU_CLANG)
set(slimgrad_nvcc ${SLIMGRAD_NVCC})
if(slimgrad_nvcc)
  execute_process(COMMAND ${slimgrad_nvcc} --version OUTPUT_VARIABLE version ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" version "${version}")
  if(CMAKE_MATCH_1 VERSION_LESS 13.0)
    message(STATUS "device code: ${slimgrad_nvcc} is not used, for it is older than 13.0")
    set(slimgrad_nvcc "")
  endif()
endif()

# Headers that an output depends on are in a file that the compilers write.
function(slimgrad_device_code output)
  cmake_parse_arguments(arg "" "" "COMMAND" ${ARGN})
  add_custom_command(OUTPUT ${output} DEPENDS ${slimgrad_device_source} DEPFILE ${output}.d
                     COMMAND ${arg_COMMAND} ${slimgrad_device_source} -o ${output} VERBATIM
                     COMMENT "Compiling ${output}")
endfunction()

set(SLIMGRAD_DEVICE_IMAGES "")
set(slimgrad_device_folder ${PROJECT_BINARY_DIR}/device)
file(MAKE_DIRECTORY ${slimgrad_device_folder})
if(slimgrad_nvcc)
  foreach(architecture ${SLIMGRAD_DEVICE_ARCHITECTURES})
    list(APPEND slimgrad_gencode -gencode arch=compute_${architecture},code=sm_${architecture})
  endforeach()
  set(fatbin ${slimgrad_device_folder}/kernels.fatbin)
  slimgrad_device_code(${fatbin} COMMAND ${slimgrad_nvcc} ${slimgrad_nvcc_flags} ${slimgrad_gencode}
                       -gencode arch=compute_80,code=compute_80 -t 0 --compress-mode=size
                       -MD -MF ${fatbin}.d -fatbin)
  list(APPEND SLIMGRAD_DEVICE_IMAGES ${fatbin})
  # What tests/device/test_device_code.py and bench/device_cost.py read: code of one architecture, and
  # what it takes there and on the one that costs are also predicted for.
  set(resources "")
  foreach(architecture 80 90)
    set(output ${slimgrad_device_folder}/kernels.sm_${architecture}.resources)
    list(APPEND resources ${output})
    list(APPEND slimgrad_look COMMAND ${slimgrad_nvcc} -arch=sm_${architecture} -cubin -Xptxas -v
                              ${slimgrad_device_folder}/kernels.sm_80.ptx -o ${output}.cubin 2> ${output})
  endforeach()
  add_custom_command(
    OUTPUT ${resources} ${slimgrad_device_folder}/kernels.sm_80.ptx
    DEPENDS ${slimgrad_device_source} ${fatbin} VERBATIM
    COMMAND ${slimgrad_nvcc} ${slimgrad_nvcc_flags} -arch=sm_80 -ptx ${slimgrad_device_source}
            -o ${slimgrad_device_folder}/kernels.sm_80.ptx
    ${slimgrad_look}
    COMMENT "Compiling kernels for sm_80 and sm_90, for tests")
endif()
if(SLIMGRAD_GPU_CLANG)
  set(ptx ${slimgrad_device_folder}/kernels.ptx)
  slimgrad_device_code(${ptx} COMMAND ${SLIMGRAD_GPU_CLANG} ${slimgrad_clang_flags}
                       ${slimgrad_ptx_flags} -MD -MF ${ptx}.d)
  list(APPEND SLIMGRAD_DEVICE_IMAGES ${ptx})
  # AMD's GPUs are not supported; that the source compiles for them is checked.
  set(amd ${slimgrad_device_folder}/kernels.gfx90a.s)
  slimgrad_device_code(${amd} COMMAND ${SLIMGRAD_GPU_CLANG} ${slimgrad_clang_flags}
                       ${slimgrad_amd_flags} -MD -MF ${amd}.d)
  add_custom_target(slimgrad-device-amd DEPENDS ${amd})
endif()
add_custom_target(slimgrad-device-code DEPENDS ${SLIMGRAD_DEVICE_IMAGES} ${resources})

if(SLIMGRAD_DEVICE AND NOT SLIMGRAD_DEVICE_IMAGES)
  message(WARNING "slimgrad is built without kernels for GPUs: neither nvcc 13.0 nor clang++ was found. "
                  "Tensors on a GPU are refused, or worked on by ATen's operators with "
                  "SLIMGRAD_DEVICE_KERNELS=0 in the environment.")
endif()

# slimgrad_embed_device_code(TARGET): the images, or none.
function(slimgrad_embed_device_code target)
  target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src/device/embedded.cc)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/device/embedded.cc PROPERTIES
                              SKIP_UNITY_BUILD_INCLUSION ON)
  if(SLIMGRAD_DEVICE AND SLIMGRAD_DEVICE_IMAGES)
    set(definitions "")
    if(slimgrad_nvcc)
      list(APPEND definitions SLIMGRAD_FATBIN="${fatbin}")
    endif()
    if(SLIMGRAD_GPU_CLANG)
      list(APPEND definitions SLIMGRAD_PTX="${ptx}")
    endif()
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/device/embedded.cc PROPERTIES
                                COMPILE_DEFINITIONS "${definitions}"
                                OBJECT_DEPENDS "${SLIMGRAD_DEVICE_IMAGES}")
    message(STATUS "device code: ${SLIMGRAD_DEVICE_IMAGES}")
  else()
    message(STATUS "device code: none")
  endif()
endfunction()
