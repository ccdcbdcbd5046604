#!/bin/bash
# Installs the Debian packages that are missing; silent when none is.
#   tools/install_deps.sh [build|test|ci]     each set contains the one before it
#   tools/install_deps.sh plots               build, and what tools/make_results.py needs
set -euo pipefail

# ocl-icd-opencl-dev: Debian's oneDNN is built with OpenCL, and its CMake package asks for it.
packages=(g++ cmake ninja-build pkg-config libdnnl-dev ocl-icd-opencl-dev libsentencepiece-dev
          nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libpcre2-dev libutf8proc-dev
          zlib1g-dev libxxhash-dev)
test_packages=(libgtest-dev libgmock-dev librapidcheck-dev python3 clang-format)
ci_packages=(clang-19 libclang-rt-19-dev)  # 14, the default, lacks std::source_location

case "${1:-build}" in
  build) ;;
  test) packages+=("${test_packages[@]}") ;;
  plots) packages+=(python3 python3-matplotlib) ;;
  ci) packages+=("${test_packages[@]}" "${ci_packages[@]}") ;;
  *) echo "install_deps: unknown set '$1'; use build, test, ci or plots" >&2; exit 2 ;;
esac

is_installed() {
  [[ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" == installed ]]
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
[[ ${#missing[@]} -eq 0 ]] && exit 0

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
"${apt_get[@]}" update
"${apt_get[@]}" install --yes --no-install-recommends "${missing[@]}" >/dev/null
