#!/bin/bash
# Copies headers and static libraries of Debian packages of this machine into a new folder that can
# be carried to one that lacks them (Debian or Ubuntu, same processor): CMAKE_PREFIX_PATH=DIR finds
# them there.
#   tools/pack_deps.sh DIR [PACKAGE...]
# PACKAGES unless given: libpcre2-dev libutf8proc-dev libxxhash-dev librapidcheck-dev, libedit-dev
# with what it needs: libncurses-dev libbsd-dev libmd-dev; and of libboost-dev what the server includes,
# which is 6 MB instead of 180.
# Exit code 1: a package has nothing to copy; 2: wrong options, or DIR has something in it.
set -euo pipefail
sources=$(dirname "$(realpath "$0")")/../src

# fail CODE TEXT
fail() { echo "pack_deps: $2" >&2 && exit "$1"; }

case ${1:-} in
  --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
  -*) fail 2 "unknown option $1; usage: tools/pack_deps.sh DIR [PACKAGE...]" ;;
  "") fail 2 "needs a folder: tools/pack_deps.sh DIR [PACKAGE...]" ;;
esac
target=$1
shift
[[ $# -gt 0 ]] || set -- libpcre2-dev libutf8proc-dev libxxhash-dev librapidcheck-dev \
  libedit-dev libncurses-dev libbsd-dev libmd-dev libboost-dev
if [[ -e $target && -n $(ls -A "$target") ]]; then
  fail 2 "$target is there and not empty; name a new folder, or remove that one"
fi
architecture=$(dpkg --print-architecture) || fail 1 "needs dpkg: a Debian or Ubuntu machine"

# Headers of Boost that the sources include, and what those include.
headers_of_boost() {
  { echo '#include <boost/version.hpp>' && grep -rhoE '^#include <boost/[^>]+>' "$sources" | sort -u; } |
    g++ -std=c++20 -M -x c++ - 2>/dev/null | grep -oE '/usr/include/boost/[^ ]+' | sort -u || true
}

# What to copy of a package, nothing if it is not installed.
files_of() {
  if [[ $1 == libboost-dev ]]; then headers_of_boost && return; fi
  # Of some packages dpkg wants the architecture, of others not.
  { dpkg -L "$1:$architecture" 2>/dev/null || dpkg -L "$1" 2>/dev/null; } |
    grep -E '^/usr/include/.*\.(h|hpp)$|\.(a|pc)$|/cmake/.*\.cmake$' |
    grep -vE 'pcre2-16|pcre2-32|pcre2-posix|/pcre2posix\.h' |  # not used
    if [[ $1 == libncurses-dev ]]; then grep libtermcap; else cat; fi || true
}

files=""
for package in "$@"; do
  found=$(files_of "$package")
  [[ -n $found ]] || fail 1 "nothing to copy of $package: not installed, or not a -dev package"
  files+=$found$'\n'
done
while read -r file; do
  install -D -m 644 "$file" "$target${file#/usr}"
done <<<"${files%$'\n'}"
find "$target" -name '*.pc' -exec sed -i 's|^prefix=.*|prefix=${pcfiledir}/../../..|' {} +
# What a shared library would bring along itself.
find "$target" -name '*.pc' | while read -r file; do
  private=$(sed -n 's/^Libs.private: *//p' "$file")
  sed -i "s|^Libs: .*|& $private|" "$file"
done
du -sh "$target"
