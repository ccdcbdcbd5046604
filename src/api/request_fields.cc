#include "api/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "base/error.h"
#include "base/field.h"
#include "base/hash.h"
#include "base/shown.h"

namespace quantspec::api {

namespace {

[[noreturn]] void refuse(const RequestField& row) {
  fail(ErrorKind::kInvalidRequest, "{}: must be {}", Field{row.name}, row.range());
}

// A whole number may be written as 3.0, which some languages do.
bool is_whole(const OrderedJson& value, std::int64_t least, std::uint64_t most) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    return number <= most && (least < 0 || number >= static_cast<std::uint64_t>(least));
  }
  if (value.is_number_integer()) {
    const auto number = value.get<std::int64_t>();
    return number >= least && (number < 0 || static_cast<std::uint64_t>(number) <= most);
  }
  if (!value.is_number_float()) return false;
  constexpr double kExact = 9007199254740992.0;  // 2^53
  const auto number = value.get<double>();
  return number == std::floor(number) && std::abs(number) <= kExact &&
         number >= static_cast<double>(least) && number <= static_cast<double>(most);
}

bool is_stop(const OrderedJson& value, std::uint64_t most) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return !text.empty() && text.size() <= most;
}

bool is_ids(const OrderedJson& value, std::uint64_t most) {
  return value.is_array() && value.size() <= most &&
         std::ranges::all_of(value, [](const OrderedJson& id) {
           return id.is_number_integer() && is_whole(id, 0, std::numeric_limits<TokenId>::max());
         });
}

bool is_one_of(const OrderedJson& value, std::string_view values) {
  const OrderedJson list = OrderedJson::parse(values);
  return std::ranges::find(list, value) != list.end();
}

bool is_right(const RequestField& row, const OrderedJson& value) {
  switch (row.type) {
    case FieldType::kFlag:
      return value.is_boolean();
    case FieldType::kWhole:
      return is_whole(value, row.least, row.most);
    case FieldType::kReal:
      return value.is_number() && value.get<double>() >= row.low && value.get<double>() <= row.high;
    case FieldType::kText:
      return value.is_string() && value.get_ref<const std::string&>().size() <= row.most;
    case FieldType::kChoice:
      return is_one_of(value, row.values);
    case FieldType::kTexts:
      if (!value.is_array()) return is_stop(value, row.most);
      return value.size() <= kMostStops && std::ranges::all_of(value, [&](const OrderedJson& one) {
               return is_stop(one, row.most);
             });
    case FieldType::kIds:
      return is_ids(value, row.most);
    case FieldType::kObject:
      return value.is_object();
    case FieldType::kList:
      return value.is_array();
    case FieldType::kAny:
      break;
  }
  return true;
}

// "0, -1 or null": what works of a field that is not there.
std::string shown_values(std::string_view values) {
  std::string text;
  const OrderedJson list = OrderedJson::parse(values);
  for (std::size_t i = 0; i < list.size(); ++i) {
    text += (i == 0 ? "" : ", ") + list[i].dump();
  }
  return text.empty() ? "null" : text + " or null";
}

}  // namespace

std::string RequestField::range() const {
  const auto is_number_free = [](std::uint64_t bound) { return bound >= (std::uint64_t{1} << 30); };
  if (honour == Honour::kNeutral) return shown_values(values);
  switch (type) {
    case FieldType::kFlag:
      return "true or false";
    case FieldType::kWhole:
      if (honour == Honour::kAccepted) return "a whole number";
      if (most == std::numeric_limits<std::uint64_t>::max()) {
        return fmt::format("a whole number from {} to 2^64 - 1", least);
      }
      if (most == static_cast<std::uint64_t>(std::numeric_limits<int>::max())) {
        return fmt::format("a whole number from {} to 2^31 - 1", least);
      }
      return fmt::format("a whole number from {} to {}", least, most);
    case FieldType::kReal:
      return fmt::format("a number from {:.6g} to {:.6g}", low, high);
    case FieldType::kText:
      return is_number_free(most) ? "a text" : fmt::format("a text of at most {} bytes", most);
    case FieldType::kChoice: {
      std::string text;
      for (const OrderedJson& one : OrderedJson::parse(values)) {
        text += (text.empty() ? "" : " or ") + one.get<std::string>();
      }
      return text;
    }
    case FieldType::kTexts:
      return fmt::format("a text of 1 to {} bytes, or a list of at most {}", most, kMostStops);
    case FieldType::kIds:
      return is_number_free(most) ? "a list of token ids"
                                  : fmt::format("a list of at most {} token ids", most);
    case FieldType::kObject:
      return "an object";
    case FieldType::kList:
      return "a list";
    case FieldType::kAny:
      break;
  }
  return "as said";
}

const RequestField* find_field(std::string_view name, Endpoint endpoint) {
  using Rows = std::vector<const RequestField*>;
  static const auto rows = [] {
    std::unordered_map<std::string_view, Rows, TableHash> by_name;
    for (const RequestField& row : request_fields()) by_name[row.name].push_back(&row);
    return by_name;
  }();
  const auto found = rows.find(name);
  if (found == rows.end()) return nullptr;
  const auto row = std::ranges::find_if(
      found->second, [&](const RequestField* one) { return one->is_of(endpoint); });
  return row == found->second.end() ? nullptr : *row;
}

void apply_field(const RequestField& row, const OrderedJson& value, Wanted& wanted) {
  if (value.is_null()) return;  // as if it were not there, as OpenAI has it
  if (row.honour == Honour::kNeutral) {
    if (is_one_of(value, row.values)) return;
    fail(ErrorKind::kInvalidRequest, "{}: is not supported: {}; {} works", Field{row.name}, row.doc,
         row.range());
  }
  if (!is_right(row, value)) refuse(row);
  if (row.apply != nullptr) row.apply(row, value, wanted);
}

namespace {

// What single fields cannot say.
void require_sense(const Wanted& wanted) {
  const auto refuse_pair = [](std::string_view field, std::string_view why) {
    fail(ErrorKind::kInvalidRequest, "{}: {}", Field{field}, why);
  };
  if (wanted.best_of && *wanted.best_of != wanted.n) {
    fail(ErrorKind::kInvalidRequest, "{}: {} with an n of {}; as many as n work", Field{"best_of"},
         *wanted.best_of, wanted.n);
  }
  if (wanted.continue_final_message && wanted.add_generation_prompt.value_or(false)) {
    refuse_pair("continue_final_message",
                "with add_generation_prompt; a message is continued or begun, not both");
  }
  if (wanted.max_tokens.value_or(-1) >= 0 && wanted.min_tokens > *wanted.max_tokens) {
    fail(ErrorKind::kInvalidRequest, "{}: {}, but at most {} are generated", Field{"min_tokens"},
         wanted.min_tokens, *wanted.max_tokens);
  }
  const auto usual = wanted.seed ? SpecSampling::kCoupled : SpecSampling::kRejection;
  if (wanted.receipt && !wanted.sampling.greedy() &&
      wanted.spec_sampling.value_or(usual) != SpecSampling::kCoupled) {
    refuse_pair("receipt", "is of an answer that comes again; give a seed or a temperature of 0");
  }
  // Who knows the noise could otherwise shape what is accepted by what is predicted.
  if (!wanted.prediction_text.empty() && wanted.seed && !wanted.sampling.greedy() &&
      wanted.spec_sampling == SpecSampling::kRejection) {
    refuse_pair("prediction", "with a seed is for coupled sampling; leave spec_sampling out");
  }
  if (wanted.receipt && wanted.reads_only()) {
    refuse_pair("receipt", "is of an answer; with max_tokens 0 there is none");
  }
  if (wanted.receipt && wanted.echo) refuse_pair("receipt", "is of answers alone; without echo");
  if (wanted.include_usage && !wanted.stream) {
    refuse_pair("stream_options", "is for a stream; give stream true as well");
  }
}

}  // namespace

Wanted read_wanted(Endpoint endpoint, const OrderedJson& body, const SamplingParams& defaults,
                   std::vector<std::string>& unknown) {
  if (!body.is_object()) fail(ErrorKind::kInvalidRequest, "the body must be a JSON object");
  Wanted wanted{.endpoint = endpoint, .sampling = defaults};
  for (const auto& [name, value] : body.items()) {
    const RequestField* row = find_field(name, endpoint);
    if (row == nullptr) {
      unknown.push_back(name);
    } else {
      apply_field(*row, value, wanted);
    }
  }
  for (const RequestField& row : request_fields()) {
    if (!row.required || !row.is_of(endpoint)) continue;
    const auto found = body.find(row.name);
    if (found != body.end() && !found->is_null()) continue;
    fail(ErrorKind::kInvalidRequest, "{}: is missing; give {}", Field{row.name}, row.doc);
  }
  require_sense(wanted);
  return wanted;
}

}  // namespace quantspec::api
