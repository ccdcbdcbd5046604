// What a service tells systemd (sd_notify(3)): a datagram to the socket that NOTIFY_SOCKET names.
// Where there is none, nothing happens. Thread-safe, unless the environment is changed meanwhile.
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

namespace quantspec::net {

// Lines such as "READY=1", "STOPPING=1", "WATCHDOG=1", "STATUS=text". Returns whether it was sent.
bool notify_service(std::string_view lines);

// How often "WATCHDOG=1" is due at the latest: half of what the service's unit allows. nullopt:
// never.
std::optional<std::chrono::milliseconds> watchdog_time();

}  // namespace quantspec::net
