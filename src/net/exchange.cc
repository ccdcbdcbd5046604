// Exchange and SseStream: handles of a Channel.
#include <utility>

#include "base/error.h"
#include "net/answer_text.h"
#include "net/channel.h"
#include "net/net.h"

namespace quantspec::net {

SseStream::SseStream(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
SseStream::~SseStream() { channel_->drop_stream(); }
Room SseStream::send(std::string_view event) { return channel_->send(event); }
bool SseStream::has_room() const { return channel_->has_room(); }
void SseStream::on_room(std::function<void()> f) { channel_->on_room(std::move(f)); }
void SseStream::finish() { channel_->finish(); }
bool SseStream::is_gone() const { return channel_->is_gone(); }

Exchange::Exchange(Request request, std::shared_ptr<Channel> channel)
    : request_(std::move(request)), channel_(std::move(channel)) {}
Exchange::~Exchange() { channel_->drop_exchange(); }

std::string Exchange::take_body() { return std::exchange(request_.body, {}); }

bool Exchange::respond(Answer answer) {
  check(answer.status >= 200 && answer.status <= 599, "an answer has a status that ends it");
  check(are_sendable(answer.headers), "headers of an answer are printable and no framing");
  return channel_->respond(std::move(answer));
}

std::shared_ptr<SseStream> Exchange::stream(Headers headers, std::optional<Milliseconds> ping) {
  check(are_sendable(headers), "headers of a stream are printable and no framing");
  channel_->begin_stream(std::move(headers), ping.value_or(channel_->ping()));
  return std::make_shared<SseStream>(channel_);
}

void Exchange::on_gone(std::function<void(Gone)> f) { channel_->on_gone(std::move(f)); }
bool Exchange::is_gone() const { return channel_->is_gone(); }

}  // namespace quantspec::net
