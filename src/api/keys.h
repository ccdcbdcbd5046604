// Who may ask: keys, of which only hashes are kept. Thread-safe. Private to api/.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/api.h"
#include "base/request_id.h"
#include "base/sha256.h"

namespace quantspec::api {

// On whose behalf a request is. Owners share the engine fairly, and see nothing of each other's
// prompts.
struct Caller {
  OwnerId owner = 0;
  std::string salt = {};
  std::string name = {};  // for the log: a part of the hash
};

class Keys {
 public:
  explicit Keys(const std::vector<std::string>& keys) { set(keys); }
  void set(const std::vector<std::string>& keys);
  bool open() const;  // there are none: whoever comes may ask
  // nullopt: the request has no key, or a wrong one. It takes as long for all of them.
  std::optional<Caller> caller_of(const HttpRequest& request) const;

 private:
  using Hashes = std::vector<Sha256>;
  std::shared_ptr<const Hashes> hashes() const;

  mutable std::mutex mutex_;
  std::shared_ptr<const Hashes> hashes_;
};

}  // namespace quantspec::api
