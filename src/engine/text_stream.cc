#include "engine/text_stream.h"

#include <algorithm>
#include <utility>

namespace quantspec {

TextStream::TextStream(const Tokenizer& tokenizer, Rules rules)
    : rules_(std::move(rules)),
      decoder_(tokenizer, /*at_start=*/false),  // a prompt came before
      stops_(rules_.stop) {}

std::optional<StopReason> TextStream::push(TokenEvent event, const TokenCallback& show) {
  const auto is_one_of = [&](const std::vector<TokenId>& ids) {
    return std::ranges::find(ids, event.id) != ids.end();
  };
  tokens_.push_back(event.id);
  const bool eos = is_one_of(rules_.eos), stop_id = !eos && is_one_of(rules_.stop_ids);
  std::string text;
  if (eos || stop_id) {
    text = stops_.push(decoder_.flush());
    if (!stops_.stopped()) text += stops_.flush();
  } else if (std::cmp_less(tokens_.size(), rules_.min_tokens)) {
    text = decoder_.push(event.id);
  } else {
    text = stops_.push(decoder_.push(event.id));
  }
  const bool go_on = this->show(event, text, show);
  if (stops_.stopped()) return StopReason::kStop;
  if (eos) return StopReason::kEos;
  if (stop_id) return StopReason::kStop;
  if (!go_on) return StopReason::kCancelled;
  return std::nullopt;
}

void TextStream::finish(const TokenCallback& show) {
  if (stops_.stopped() || tokens_.empty()) return;
  std::string text = stops_.push(decoder_.flush());
  if (!stops_.stopped()) text += stops_.flush();
  if (!text.empty()) this->show({.id = tokens_.back(), .more_text = true}, text, show);
}

bool TextStream::show(TokenEvent event, std::string_view text, const TokenCallback& show) {
  text_ += text;
  event.text = text;
  return !show || show(event);
}

}  // namespace quantspec
