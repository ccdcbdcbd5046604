#include "apps/cli/sampling.h"

#include <fmt/format.h>

#include <cstdlib>
#include <random>
#include <type_traits>

#include "apps/cli/flags.h"
#include "base/json.h"
#include "sampler/parameters.h"

namespace quantspec::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kMode = "spec_sampling";

template <auto member, typename T>
void choose(ChosenSampling& chosen, const std::optional<T>& typed, const std::optional<T>& of_model,
            T otherwise) {
  chosen.params.*member = typed ? *typed : of_model.value_or(otherwise);
  chosen.from[sampling_param<member>().name] = typed      ? "option"
                                               : of_model ? "generation_config.json"
                                                          : "default";
}

void choose_mode(ChosenSampling& chosen, const SamplingArgs& args, bool compares) {
  const bool coupled = args.seed || compares;
  chosen.mode = args.mode.value_or(coupled ? SpecSampling::kCoupled : SpecSampling::kRejection);
  chosen.from[kMode] = args.mode   ? "option"
                       : args.seed ? "--seed"
                       : compares  ? "--compare"
                                   : "default";
}

std::string_view name_of(SpecSampling mode) {
  return mode == SpecSampling::kCoupled ? "coupled" : "rejection";
}

// A float with the digits that it has, without those of the double next to it.
template <typename T>
Json json_number(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::strtod(fmt::format("{}", value).c_str(), nullptr);
  } else {
    return value;
  }
}

}  // namespace

ChosenSampling choose_sampling(const SamplingArgs& args, const GenerationDefaults& model,
                               bool compares) {
  using P = SamplingParams;
  const auto none = [](auto value) { return std::optional<decltype(value)>(); };
  const auto temperature = model.do_sample == false ? std::optional(0.0f) : model.temperature;
  ChosenSampling chosen;
  choose<&P::temperature>(chosen, args.temperature, temperature, 0.8f);
  choose<&P::top_k>(chosen, args.top_k, model.top_k, 40);
  choose<&P::top_p>(chosen, args.top_p, model.top_p, 0.95f);
  choose<&P::min_p>(chosen, args.min_p, model.min_p, 0.05f);
  choose<&P::repeat_penalty>(chosen, args.repeat_penalty, model.repetition_penalty, 1.0f);
  choose<&P::repeat_last_n>(chosen, args.repeat_last_n, none(0), P{}.repeat_last_n);
  choose<&P::presence_penalty>(chosen, args.presence_penalty, none(0.0f), 0.0f);
  choose<&P::frequency_penalty>(chosen, args.frequency_penalty, none(0.0f), 0.0f);
  choose<&P::seed>(chosen, args.seed, none(std::uint64_t{0}),
                   std::uint64_t{std::random_device{}()});
  if (!args.seed) chosen.from["seed"] = "random";
  choose_mode(chosen, args, compares);
  return chosen;
}

Json to_json(const ChosenSampling& sampling) {
  Json json;
  for_each_sampling_param([&](const auto& param) {
    json[std::string(param.name)] = {{"value", json_number(sampling.params.*param.member)},
                                     {"from", sampling.from.at(param.name)}};
  });
  json[std::string(kMode)] = {{"value", name_of(sampling.mode)}, {"from", sampling.from.at(kMode)}};
  return json;
}

std::string describe(const ChosenSampling& sampling) {
  std::string text;
  for_each_sampling_param([&](const auto& param) {
    text += fmt::format("{} {} ({}), ", flag_of(param.field), sampling.params.*param.member,
                        sampling.from.at(param.name));
  });
  return text +
         fmt::format("--spec-sampling {} ({})", name_of(sampling.mode), sampling.from.at(kMode));
}

}  // namespace quantspec::cli
