// What rounds are limited to.
#pragma once

namespace quantspec {

inline constexpr int kMaxDraftLen = 16;  // γ

}  // namespace quantspec
