#!/bin/bash
# Installs the Debian packages that are missing; silent when none is.
#   tools/install_deps.sh [build|test|ci]     each set contains the one before it
#   tools/install_deps.sh plots               build, and what tools/make_results.py needs
#   tools/install_deps.sh benchmarks          build, and what kernel_bench needs
#   tools/install_deps.sh arm                 what `cmake --preset aarch64` needs (docs/arm.md)
set -euo pipefail
cd "$(dirname "$0")/.."

tools=(g++ cmake ninja-build pkg-config nlohmann-json3-dev libcli11-dev
       libboost1.81-dev)
libraries=(libspdlog-dev libfmt-dev libpcre2-dev libutf8proc-dev zlib1g-dev libxxhash-dev
  libedit-dev)
test_libraries=(libgtest-dev libgmock-dev librapidcheck-dev)
packages=("${tools[@]}" "${libraries[@]}" libsentencepiece-dev)
if [[ "$(dpkg --print-architecture 2>/dev/null)" == amd64 ]]; then  # src/base/gemm.h
  # ocl-icd-opencl-dev: Debian's oneDNN is built with OpenCL, and its CMake package asks for it.
  packages+=(libdnnl-dev ocl-icd-opencl-dev)
else
  packages+=(libopenblas-dev)
fi
test_packages=("${test_libraries[@]}" python3 clang-format)
# clang-19: 14, the default, lacks std::source_location. chromium-driver: tests/page_cli_test.py; nginx
# and haproxy: tests/proxies_cli_test.py
ci_packages=(clang-19 libclang-rt-19-dev chromium-driver nginx-light haproxy)

case "${1:-build}" in
  build) ;;
  test) packages+=("${test_packages[@]}") ;;
  plots) packages+=(python3 python3-matplotlib) ;;
  benchmarks) packages+=(libbenchmark-dev) ;;
  ci) packages+=("${test_packages[@]}" "${ci_packages[@]}") ;;
  arm)
    packages=("${tools[@]}" python3 g++-aarch64-linux-gnu qemu-user libc6:arm64 libstdc++6:arm64)
    for library in "${libraries[@]}" "${test_libraries[@]}" libopenblas-dev; do
      packages+=("$library:arm64")
    done
    ;;
  *) echo "install_deps: unknown set '$1'; use build, test, ci, plots, benchmarks or arm" >&2; exit 2 ;;
esac

is_installed() {  # NAME or NAME:ARCHITECTURE; without one, this machine's
  local architecture=${1##*:}
  [[ $1 == *:* ]] || architecture=$(dpkg --print-architecture)
  dpkg-query -W -f='${Architecture} ${db:Status-Status}\n' "${1%:*}" 2>/dev/null |
    grep -qxE "(all|$architecture) installed"
}

missing=()
if ! command -v dpkg-query >/dev/null; then
  echo "install_deps: no dpkg here; install these by hand, or what your system calls them," >&2
  echo "then configure with CMake as in the Makefile: ${packages[*]}" >&2
  exit 1
fi
for package in "${packages[@]}"; do
  is_installed "$package" || missing+=("$package")
done

# SentencePiece's package cannot be installed for two architectures at once: for ARM its files go to
# a folder of their own, where cmake/aarch64-linux-gnu.cmake finds them.
unpack_sentencepiece() {
  local folder=$PWD/build-aarch64-packages debs
  local pc=$folder/usr/lib/aarch64-linux-gnu/pkgconfig/sentencepiece.pc
  [[ -e $pc ]] && return
  debs=$(mktemp -d)
  (cd "$debs" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download \
    libsentencepiece0:arm64 libsentencepiece-dev:arm64)
  for deb in "$debs"/*.deb; do dpkg -x "$deb" "$folder"; done
  rm -r "$debs"
  sed -i 's|^prefix=.*|prefix=${pcfiledir}/../../..|' "$pc"
}

if [[ ${#missing[@]} -eq 0 ]]; then
  [[ "${1:-}" != arm ]] || unpack_sentencepiece
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "install_deps: neither root nor sudo; as root, run:" >&2
    echo "  apt-get update && apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "Installing with apt${as_root:+ (using sudo)}: ${missing[*]}"
apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0)
[[ "${1:-}" != arm ]] || "${as_root[@]}" dpkg --add-architecture arm64
"${apt_get[@]}" update
"${apt_get[@]}" install --yes --no-install-recommends "${missing[@]}" >/dev/null
[[ "${1:-}" != arm ]] || unpack_sentencepiece
