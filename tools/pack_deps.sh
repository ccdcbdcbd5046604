#!/bin/bash
# Copies headers and static libraries of Debian packages of this machine into a folder that can be
# carried to one that lacks them (Debian or Ubuntu, same processor): CMAKE_PREFIX_PATH=DIR finds
# them there.
#   tools/pack_deps.sh DIR [PACKAGE...]
# PACKAGES unless given: libpcre2-dev libutf8proc-dev libxxhash-dev librapidcheck-dev
set -euo pipefail

if [[ $# -eq 0 || $1 == -* ]]; then
  sed -n '2,6s/^# \{0,1\}//p' "$0"
  exit 2
fi
target=$1
shift
[[ $# -gt 0 ]] || set -- libpcre2-dev libutf8proc-dev libxxhash-dev librapidcheck-dev
architecture=$(dpkg --print-architecture)

rm -rf "$target"
mkdir -p "$target"
for package in "$@"; do
  # Of some packages dpkg wants the architecture, of others not.
  files=$(dpkg -L "$package:$architecture" 2>/dev/null || dpkg -L "$package")
  while read -r file; do
    case $file in
      *pcre2-16* | *pcre2-32* | *pcre2-posix* | */pcre2posix.h) ;;  # not used
      /usr/include/*.h | /usr/include/*.hpp | *.a | *.pc | */cmake/*.cmake)
        mkdir -p "$target$(dirname "${file#/usr}")"
        cp "$file" "$target${file#/usr}"
        ;;
    esac
  done <<<"$files"
done
find "$target" -name '*.pc' -exec sed -i 's|^prefix=.*|prefix=${pcfiledir}/../../..|' {} +
du -sh "$target"
