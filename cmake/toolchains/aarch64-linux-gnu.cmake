# Debian's cross compiler for 64-bit Arm. Header-only packages are the machine's own; Highway and
# GoogleTest for Arm lie in a folder of the build, where scripts/check-arm64 unpacks them.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)

set(arm64_packages ${CMAKE_CURRENT_LIST_DIR}/../../build/arm64/packages)
list(PREPEND CMAKE_PREFIX_PATH ${arm64_packages}/usr)
set(ENV{PKG_CONFIG_LIBDIR} ${arm64_packages}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${arm64_packages})
