#include "net/channel.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/expect_error.h"

namespace quantspec::net {
namespace {

struct Ends {
  explicit Ends(Limits limits = {}) : limits(limits) {}
  Limits limits;
  int wakes = 0;
  std::shared_ptr<Channel> channel = std::make_shared<Channel>(limits, [this] { ++wakes; });
};

TEST(Channel, WakesOnceUntilWhatIsNewIsTaken) {
  Ends ends;
  Channel& channel = *ends.channel;
  EXPECT_TRUE(channel.begin_stream({{"a", "b"}}, Milliseconds(1)));
  EXPECT_EQ(channel.send("1"), Room::kRoom);
  EXPECT_EQ(channel.send("2"), Room::kRoom);
  EXPECT_EQ(ends.wakes, 1);
  Channel::Output output = channel.take();
  EXPECT_TRUE(output.head.has_value());
  EXPECT_EQ(output.events, "12");
  EXPECT_FALSE(output.is_last);
  channel.send("3");
  channel.finish();
  EXPECT_EQ(ends.wakes, 2);
  output = channel.take();
  EXPECT_FALSE(output.head.has_value());
  EXPECT_EQ(output.events, "3");
  EXPECT_TRUE(output.is_last);
  EXPECT_EQ(channel.send("4"), Room::kGone);
}

TEST(Channel, HasRoomAgainWhenHalfIsWritten) {
  Limits limits;
  limits.outbox_bytes = 10;
  limits.outbox_events = 3;
  Ends ends(limits);
  Channel& channel = *ends.channel;
  channel.begin_stream({}, {});
  int rooms = 0;
  channel.on_room([&] { ++rooms; });
  EXPECT_EQ(channel.send("12345"), Room::kRoom);
  EXPECT_EQ(channel.send("67890"), Room::kFull);
  EXPECT_EQ(channel.take().events.size(), 10u);
  EXPECT_FALSE(channel.has_room());  // taken is not written
  EXPECT_EQ(channel.send("abcdef"), Room::kFull);
  channel.written();
  EXPECT_EQ(rooms, 0);
  channel.take();
  channel.written();
  EXPECT_EQ(rooms, 1);
  EXPECT_TRUE(channel.has_room());
  EXPECT_EQ(channel.send(""), Room::kRoom);
  EXPECT_EQ(channel.send(""), Room::kRoom);
  EXPECT_EQ(channel.send(""), Room::kFull);
}

TEST(Channel, TakesOneLargeEventAndAsMuchAgainAfterItIsFull) {
  Limits limits;
  limits.outbox_bytes = 10;
  Ends ends(limits);
  Channel& channel = *ends.channel;
  channel.begin_stream({}, {});
  EXPECT_EQ(channel.send(std::string(1000, 'x')), Room::kFull);
  EXPECT_EQ(channel.send("1234567890"), Room::kFull);
  EXPECT_EQ(channel.send("x"), Room::kGone);
  EXPECT_TRUE(channel.overflows());
}

TEST(Channel, CallsWhoWaitsForTheEndOnce) {
  Ends ends;
  Channel& channel = *ends.channel;
  std::vector<Gone> gone;
  channel.on_gone([&](Gone why) {
    gone.push_back(why);
    EXPECT_TRUE(channel.is_gone());  // without the lock
    throw std::runtime_error("a callback that throws");
  });
  expect_error(ErrorKind::kInternal, {"on_gone"}, [&] { channel.on_gone([](Gone) {}); });
  EXPECT_TRUE(channel.cut(Gone::kTooSlow));
  EXPECT_FALSE(channel.cut(Gone::kHungUp));
  EXPECT_EQ(gone, std::vector<Gone>{Gone::kTooSlow});
  EXPECT_FALSE(channel.respond({}));
  expect_error(ErrorKind::kInternal, {"once"}, [&] { channel.respond({}); });
}

TEST(Channel, ReleasesCallbacksThatHoldTheirExchange) {
  Ends ends;
  const auto exchange = std::make_shared<Exchange>(Request{}, ends.channel);
  std::weak_ptr<Exchange> weak = exchange;
  exchange->on_gone([exchange](Gone) { FAIL() << "it was answered"; });
  EXPECT_TRUE(exchange->respond({}));
  EXPECT_TRUE(ends.channel->is_given());
  ends.channel->cut(Gone::kHungUp);
  EXPECT_EQ(exchange.use_count(), 2);
  ends.channel->close();
  EXPECT_EQ(exchange.use_count(), 1);
}

TEST(Channel, KnowsWhatIsForgottenAndBroken) {
  Ends forgotten;
  { Exchange exchange({}, forgotten.channel); }
  EXPECT_TRUE(forgotten.channel->take().is_forgotten);
  Ends broken;
  {
    Exchange exchange({}, broken.channel);
    exchange.stream();
  }
  const Channel::Output output = broken.channel->take();
  EXPECT_TRUE(output.is_broken);
  EXPECT_FALSE(output.is_forgotten);
}

}  // namespace
}  // namespace quantspec::net
