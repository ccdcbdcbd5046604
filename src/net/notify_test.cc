#include "net/notify.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/test_folder.h"

namespace quantspec::net {
namespace {

class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    setenv(name, value.c_str(), /*overwrite=*/1);
  }
  ~Environment() { unsetenv(name_); }

 private:
  const char* name_;
};

TEST(Notify, SendsADatagramWhereASocketIsNamed) {
  EXPECT_FALSE(notify_service("READY=1"));
  const TestFolder folder;
  for (const std::string& path :
       {(folder / "notify").string(), "@quantspec-test-" + std::to_string(getpid())}) {
    const int socket = ::socket(AF_UNIX, SOCK_DGRAM, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path, path.data(), path.size());
    if (path[0] == '@') name.sun_path[0] = '\0';
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
    ASSERT_EQ(bind(socket, reinterpret_cast<sockaddr*>(&name), size), 0);
    const Environment environment("NOTIFY_SOCKET", path);
    EXPECT_TRUE(notify_service("READY=1\nSTATUS=x"));
    char text[100];
    const ssize_t n = recv(socket, text, sizeof text, 0);
    EXPECT_EQ(std::string(text, static_cast<std::size_t>(n)), "READY=1\nSTATUS=x");
    close(socket);
    EXPECT_FALSE(notify_service("READY=1"));  // nobody listens any more
  }
  const Environment relative("NOTIFY_SOCKET", "relative");
  EXPECT_FALSE(notify_service("READY=1"));
}

TEST(Notify, KnowsTheWatchdogsTime) {
  EXPECT_FALSE(watchdog_time().has_value());
  const Environment time("WATCHDOG_USEC", "30000000");
  EXPECT_EQ(watchdog_time(), std::chrono::milliseconds(15'000));
  {
    const Environment other("WATCHDOG_PID", "1");
    EXPECT_FALSE(watchdog_time().has_value());
  }
  const Environment own("WATCHDOG_PID", std::to_string(getpid()));
  EXPECT_TRUE(watchdog_time().has_value());
  const Environment broken("WATCHDOG_USEC", "x");
  EXPECT_FALSE(watchdog_time().has_value());
}

}  // namespace
}  // namespace quantspec::net
