#include "engine/chat_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace quantspec {

namespace {

// Unicode says that these are no characters, so that programs may use them for themselves.
constexpr std::string_view kOpen = "\xEF\xB7\x90";   // U+FDD0
constexpr std::string_view kClose = "\xEF\xB7\x91";  // U+FDD1

// Those that stand in a text already would be taken for ours.
void add_marks(std::string_view text, std::vector<TextRange>& ranges) {
  for (const std::string_view mark : {kOpen, kClose}) {
    for (std::size_t at = 0; (at = text.find(mark, at)) != text.npos; at += mark.size()) {
      ranges.push_back({at, at + mark.size()});
    }
  }
}

std::shared_ptr<const ChatTemplate> read_template(const NamedChatTemplate& named) {
  try {
    return std::make_shared<const ChatTemplate>(named.source);
  } catch (const Error& error) {
    log_warning(Message::format("the model's chat template '{}' cannot be used: {}", named.name,
                                error.message()));
    return nullptr;
  }
}

}  // namespace

std::string Disguise::put_on(std::string_view text) {
  std::vector<TextRange> ranges = tokenizer_.special_tokens_in(text);
  add_marks(text, ranges);
  std::ranges::sort(ranges, {}, &TextRange::begin);
  std::string disguised;
  std::size_t at = 0;
  for (const auto& [begin, end] : ranges) {
    if (begin < at) continue;
    disguised += text.substr(at, begin - at);
    disguised += fmt::format("{}{}{}", kOpen, names_.size(), kClose);
    names_.emplace_back(text.substr(begin, end - begin));
    at = end;
  }
  return disguised += text.substr(at);
}

void Disguise::put_on(OrderedJson& messages) {
  for (OrderedJson& message : messages) {
    for (OrderedJson& member : message) put_on_all(member);
  }
}

void Disguise::put_on_all(OrderedJson& value) {
  if (value.is_string()) {
    value = put_on(value.get_ref<const std::string&>());
  } else if (value.is_array()) {
    for (OrderedJson& one : value) put_on_all(one);
  } else if (value.is_object()) {
    OrderedJson named = OrderedJson::object();
    auto& members = named.get_ref<OrderedJson::object_t&>();
    for (auto& [name, one] : value.get_ref<OrderedJson::object_t&>()) {
      put_on_all(one);
      members.emplace_back(put_on(name), std::move(one));  // names that differ still do
    }
    value = std::move(named);
  }
}

// What a template made of a name that is none of ours stays as it is.
Disguise::Rendered Disguise::take_off(std::string_view text) const {
  Rendered rendered;
  while (!text.empty()) {
    const std::size_t open = std::min(text.find(kOpen), text.size());
    rendered.text += text.substr(0, open);
    text.remove_prefix(open);
    if (text.empty()) break;
    const std::string_view number = text.substr(kOpen.size());
    std::size_t index = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    const std::string_view rest = number.substr(end - number.data());
    if (error != std::errc() || index >= names_.size() || !rest.starts_with(kClose)) {
      rendered.text += kOpen;
      text = number;
      continue;
    }
    const std::size_t begin = rendered.text.size();
    rendered.text += names_[index];
    rendered.plain.push_back({begin, rendered.text.size()});
    text = rest.substr(kClose.size());
  }
  return rendered;
}

ChatPrompts::ChatPrompts(std::vector<NamedChatTemplate> templates, const Tokenizer& tokenizer)
    : templates_(std::move(templates)), tokenizer_(tokenizer) {
  std::ranges::transform(templates_, std::back_inserter(read_), read_template);
  if (tokenizer.bos()) bos_ = tokenizer.name(*tokenizer.bos());
  if (tokenizer.eos()) eos_ = tokenizer.name(*tokenizer.eos());
}

std::string ChatPrompts::text(ChatInput input) const {
  if (empty()) {
    fail(ErrorKind::kInvalidRequest,
         "the model has no chat template: base models, which continue texts, have none");
  }
  if (!input.bos_token) input.bos_token = bos_;
  if (!input.eos_token) input.eos_token = eos_;
  const NamedChatTemplate& chosen = choose_chat_template(templates_, {}, input.tools != nullptr);
  const auto& read = read_[&chosen - templates_.data()];
  return read ? read->render(input) : ChatTemplate(chosen.source).render(input);  // which throws
}

std::vector<TokenId> ChatPrompts::tokens(ChatInput input) const {
  Disguise disguise(tokenizer_);
  OrderedJson messages = *input.messages;
  disguise.put_on(messages);
  input.messages = &messages;
  const Disguise::Rendered rendered = disguise.take_off(text(input));
  return tokenizer_.encode(rendered.text, false, rendered.plain);
}

}  // namespace quantspec
