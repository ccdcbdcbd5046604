// What this room's tests share: an engine, a Reply that keeps what it is told, and requests.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/api.h"
#include "engine/engine.h"

namespace quantspec::api {

inline Engine& test_engine() {
  static const std::unique_ptr<Engine> engine = [] {
    EngineOptions options;
    options.model = std::filesystem::path(QUANTSPEC_SOURCE_DIR) / "models/pg-24m";
    options.num_threads = 2;
    options.ctx_size = 2048;  // two chunks, so that one is shared
    options.page_size = 32;
    return Engine::load(options);
  }();
  return *engine;
}

// A client. `room`: how many pieces of a stream it takes before it has to be told to take more.
class FakeReply : public Reply {
 public:
  void respond(int status, Headers headers, std::string body) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(status_, 0) << "a request is answered once";
    status_ = status;
    headers_ = std::move(headers);
    body_ = std::move(body);
    finished_ = true;
    changed_.notify_all();
  }
  void begin_stream(int status, Headers headers) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(status_, 0) << "a request is answered once";
    status_ = status;
    headers_ = std::move(headers);
    changed_.notify_all();
  }
  bool send(std::string_view bytes) override {
    const std::lock_guard lock(mutex_);
    if (gone_) return true;
    EXPECT_FALSE(finished_);
    if (room_ == 0) return false;
    if (room_ > 0) --room_;
    body_ += bytes;
    ++pieces_;
    changed_.notify_all();
    return true;
  }
  void finish() override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(finished_) << "a stream ends once";
    finished_ = true;
    changed_.notify_all();
  }
  void on_room(std::function<void()> callback) override {
    const std::lock_guard lock(mutex_);
    on_room_ = std::move(callback);
  }
  void on_gone(std::function<void()> callback) override {
    {
      const std::lock_guard lock(mutex_);
      on_gone_ = callback;
      if (!gone_) return;
    }
    callback();
  }

  // --- what the client does ---
  void set_room(int pieces) {  // negative: any number
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      room_ = pieces;
      callback = on_room_;
    }
    if (pieces != 0 && callback) callback();
  }
  void go() {
    std::function<void()> callback;
    {
      const std::lock_guard lock(mutex_);
      gone_ = true;
      callback = on_gone_;
    }
    if (callback) callback();
  }
  bool wait(double seconds = 120) {
    return wait_for([this] { return finished_; }, seconds);
  }
  bool wait_for_pieces(int count, double seconds = 120) {
    return wait_for([this, count] { return pieces_ >= count || finished_; }, seconds);
  }

  // --- what it was told ---
  int status() const { return locked(status_); }
  bool finished() const { return locked(finished_); }
  int pieces() const { return locked(pieces_); }
  std::string body() const { return locked(body_); }
  std::string header(std::string_view name) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, value] : headers_) {
      if (key == name) return value;
    }
    return {};
  }
  OrderedJson json() const { return OrderedJson::parse(body()); }
  std::string error() const { return json()["error"]["message"].get<std::string>(); }
  // The events of a stream; the last is "[DONE]" where it ended as it should.
  std::vector<std::string> events() const {
    std::vector<std::string> events;
    const std::string all = body();
    for (std::size_t at = 0; at < all.size();) {
      const std::size_t end = all.find("\n\n", at);
      EXPECT_NE(end, all.npos) << "an event ends with an empty line";
      const std::string event = all.substr(at, end - at);
      if (event.starts_with("data: ")) events.push_back(event.substr(6));
      at = end + 2;
    }
    return events;
  }
  // The texts of a stream's choices.
  std::map<int, std::string> texts() const {
    std::map<int, std::string> texts;
    for (const std::string& event : events()) {
      if (event == "[DONE]") continue;
      const OrderedJson json = OrderedJson::parse(event);
      if (!json.contains("choices")) continue;
      for (const OrderedJson& choice : json["choices"]) {
        std::string& text = texts[choice["index"].get<int>()];
        if (choice.contains("text")) text += choice["text"].get<std::string>();
        if (choice.contains("delta") && choice["delta"].contains("content") &&
            choice["delta"]["content"].is_string()) {
          text += choice["delta"]["content"].get<std::string>();
        }
      }
    }
    return texts;
  }

 private:
  template <typename T>
  T locked(const T& value) const {
    const std::lock_guard lock(mutex_);
    return value;
  }
  bool wait_for(const auto& condition, double seconds) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::duration<double>(seconds), condition);
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int status_ = 0;
  Headers headers_;
  std::string body_;
  bool finished_ = false;
  bool gone_ = false;
  int room_ = -1;
  int pieces_ = 0;
  std::function<void()> on_room_;
  std::function<void()> on_gone_;
};

inline HttpRequest get(std::string path, Headers headers = {}) {
  return {.method = "GET", .path = std::move(path), .headers = std::move(headers)};
}

inline HttpRequest post(std::string path, std::string body, Headers headers = {}) {
  headers.emplace_back("content-type", "application/json");
  return {.method = "POST",
          .path = std::move(path),
          .headers = std::move(headers),
          .body = std::move(body)};
}

inline HttpRequest post(std::string path, const OrderedJson& body, Headers headers = {}) {
  return post(std::move(path), body.dump(), std::move(headers));
}

// One after the other, without what a real one escapes.
inline std::string fake_template(const OrderedJson& messages, const OrderedJson& tools,
                                 bool add_generation_prompt, const OrderedJson& variables) {
  std::string text;
  for (const OrderedJson& message : messages) {
    text +=
        message["role"].get<std::string>() + ": " + message["content"].get<std::string>() + "\n";
  }
  if (!tools.is_null()) text += "tools: " + tools.dump() + "\n";
  if (variables.contains("mood")) text += "mood: " + variables["mood"].get<std::string>() + "\n";
  return add_generation_prompt ? text + "assistant:" : text;
}

// An Api over the engine, what it logs, and its answers.
class Served : public testing::Test {
 protected:
  static ApiOptions usual() {
    ApiOptions options;
    options.model = "pg-24m";
    options.version = "1.2.3";
    options.apply_template = fake_template;
    return options;
  }

  void serve(ApiOptions options = usual()) {
    options.log = [this](const LogLine& line) {
      const std::lock_guard lock(log_mutex_);
      log_.push_back(line);
    };
    api_ = std::make_unique<Api>(test_engine(), std::move(options));
  }
  Api& api() {
    if (api_ == nullptr) serve();
    return *api_;
  }
  std::shared_ptr<FakeReply> send(HttpRequest request) {
    auto reply = std::make_shared<FakeReply>();
    api().handle(std::move(request), reply);
    return reply;
  }
  std::shared_ptr<FakeReply> ask(HttpRequest request) {
    auto reply = send(std::move(request));
    EXPECT_TRUE(reply->wait()) << "there was no answer";
    return reply;
  }
  // The whole answer to a body, which must be 200.
  OrderedJson answer(std::string path, const OrderedJson& body) {
    const auto reply = ask(post(std::move(path), body));
    EXPECT_EQ(reply->status(), 200) << reply->body();
    return reply->json();
  }
  std::string text(const OrderedJson& body) {
    return answer("/v1/completions", body)["choices"][0]["text"].get<std::string>();
  }
  std::vector<LogLine> log() const {
    const std::lock_guard lock(log_mutex_);
    return log_;
  }
  // The lines that say so.
  std::vector<LogLine> log_with(std::string_view what) const {
    std::vector<LogLine> lines = log();
    std::erase_if(lines, [&](const LogLine& line) { return line.text.find(what) == what.npos; });
    return lines;
  }
  bool wait_until(const std::function<bool()>& condition, double seconds = 60) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return true;
  }

 private:
  mutable std::mutex log_mutex_;
  std::vector<LogLine> log_;
  std::unique_ptr<Api> api_;
};

}  // namespace quantspec::api
