# Cross-compiling for 64-bit ARM on Debian, programs and tests run by qemu (docs/arm.md).
# `tools/install_deps.sh arm` installs what this needs: the libraries are Debian's :arm64 packages.
# They and the program loader are where an ARM program looks for them, so qemu needs no -L.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)

# The package that cannot be installed for two architectures at once lies in a folder of its own.
set(pkgconfig /usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_CURRENT_LIST_DIR}/../build-aarch64-packages${pkgconfig}:${pkgconfig})
