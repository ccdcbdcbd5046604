#include "backend/cuda/held_memory.h"

#include <map>
#include <mutex>

#include "base/error.h"

namespace quantspec::cuda {

namespace {

struct AllHeld {
  std::mutex mutex;
  std::map<void*, bool> given_back;  // by base
};

AllHeld& all_held() {
  static auto& held = *new AllHeld;  // also for what outlives statics
  return held;
}

}  // namespace

void hold(void* base) {
  AllHeld& held = all_held();
  const std::lock_guard lock(held.mutex);
  held.given_back.emplace(base, false);
}

bool let_go(void* base) {
  AllHeld& held = all_held();
  const std::lock_guard lock(held.mutex);
  const auto found = held.given_back.find(base);
  check(found != held.given_back.end(), "what is let go was held");
  const bool given_back = found->second;
  held.given_back.erase(found);
  return given_back;
}

bool stays(void* base) noexcept {
  AllHeld& held = all_held();
  const std::lock_guard lock(held.mutex);
  const auto found = held.given_back.find(base);
  if (found == held.given_back.end()) return false;
  return found->second = true;
}

}  // namespace quantspec::cuda
