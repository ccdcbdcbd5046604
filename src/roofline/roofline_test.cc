#include "roofline/roofline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "backend/backend.h"
#include "base/error.h"
#include "quant/encode_row.h"

namespace quantspec {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Sums of products are exact in double up to the last bits.
void expect_equal(double actual, double expected) {
  EXPECT_NEAR(actual, expected, 1e-12 * std::abs(expected));
}

const WeightBytes kF16 = weight_bytes(dense_format(DType::kF16));

ModelConfig llama2_7b() {
  ModelConfig model{};
  model.family = "llama";
  model.num_layers = 32;
  model.hidden_size = 4096;
  model.intermediate_size = 11008;
  model.num_heads = 32;
  model.num_kv_heads = 32;
  model.head_dim = 128;
  model.vocab_size = 32000;
  model.max_positions = 4096;
  return model;
}

ModelConfig llama3_8b() {
  ModelConfig model = llama2_7b();
  model.intermediate_size = 14336;
  model.num_kv_heads = 8;
  model.vocab_size = 128256;
  return model;
}

// 1 byte/s and 10 FLOP/s: bytes and FLOPs are seconds.
constexpr double kRidge = 10;
Machine slow() { return {"slow", 1, kRidge, 1e12}; }

TEST(Shape, CountsParametersOfKnownModels) {
  expect_equal(stored_parameters(llama2_7b()), 6738415616);
  expect_equal(read_parameters(llama2_7b()), 6738415616 - 131072000 - 65 * 4096);
  expect_equal(stored_parameters(llama3_8b()), 8030261248);
  ModelConfig tied = llama2_7b();
  tied.tied_head = true;
  expect_equal(stored_parameters(tied), 6738415616 - 131072000);
}

TEST(Shape, ATokenOfKvIsHalfAMebibyte) {
  expect_equal(2 * kv_elements(llama2_7b()), 512 * 1024);
  expect_equal(2 * kv_elements(llama3_8b()), 128 * 1024);
}

TEST(PassRead, CountsPlanesAndScales) {
  const PassRead draft = pass_read(llama2_7b(), kF16, WeightRead::kUpper, KvRead::kUpper);
  EXPECT_DOUBLE_EQ(draft.weight_bytes, 0.5 + 4.0 / 128);
  EXPECT_DOUBLE_EQ(draft.kv_bytes, 0.5 + 4.0 / 128);
  EXPECT_DOUBLE_EQ(draft.ring_tokens, 192);
  const PassRead target = pass_read(llama2_7b(), kF16, WeightRead::kTarget, KvRead::kBoth);
  EXPECT_DOUBLE_EQ(target.weight_bytes, 2);
  EXPECT_DOUBLE_EQ(target.kv_bytes, 1 + 4.0 / 128);
  const PassRead plain = pass_read(llama2_7b(), kF16, WeightRead::kBoth, KvRead::kFull);
  EXPECT_DOUBLE_EQ(plain.weight_bytes, 1 + 4.0 / 128);
  EXPECT_DOUBLE_EQ(plain.kv_bytes, 2);
  EXPECT_DOUBLE_EQ(plain.ring_tokens, 0);
  ModelConfig small_heads = llama2_7b();
  small_heads.head_dim = 64;  // pages of 64 tokens, and a value row is one group
  const PassRead small = pass_read(small_heads, weight_bytes(dense_format(DType::kF32)),
                                   WeightRead::kTarget, KvRead::kUpper);
  EXPECT_DOUBLE_EQ(small.weight_bytes, 4);
  EXPECT_DOUBLE_EQ(small.kv_bytes, 0.5 + 4.0 / 64);
  EXPECT_DOUBLE_EQ(small.ring_tokens, 96);
}

TEST(PassRead, CountsScalesOfOtherPagesAndGroups) {
  const PassRead read = pass_read(llama2_7b(), weight_bytes(dense_format(DType::kF16), 64),
                                  WeightRead::kUpper, KvRead::kUpper, 32);
  EXPECT_DOUBLE_EQ(read.weight_bytes, 0.5 + 4.0 / 64);
  EXPECT_DOUBLE_EQ(read.kv_bytes, 0.5 + 2.0 / 32 + 2.0 / 128);  // of keys, of values
  EXPECT_DOUBLE_EQ(read.ring_tokens, 48);
}

TEST(Cost, TakesTheLaterOfBothLimits) {
  EXPECT_DOUBLE_EQ((Cost{100, 1}.seconds(slow())), 10);
  EXPECT_DOUBLE_EQ((Cost{100, 20}.seconds(slow())), 20);
  EXPECT_TRUE((Cost{100, 10}.compute_bound(slow())));
  EXPECT_FALSE((Cost{99, 10}.compute_bound(slow())));
  const StepCost step{{100, 1}, {10, 30}};
  EXPECT_DOUBLE_EQ(step.seconds(slow()), 40);
  EXPECT_DOUBLE_EQ(step.attention_share(slow()), 0.75);
}

// One layer, all sizes different, every term by hand.
TEST(Cost, CountsEveryTermOfASmallModel) {
  ModelConfig model{};
  model.num_layers = 1;
  model.hidden_size = 6;
  model.intermediate_size = 10;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 16;
  model.vocab_size = 7;
  const double q = 64, kv = 32;                              // widths
  const double layer = 6 * q + 2 * 6 * kv + q * 6 + 3 * 60;  // 1332
  const double head = 42;
  const double activations = 6 + (q + 2 * kv) + q + 6 + 6 + 20 + 10 + 6;

  const StepCost prefill = prefill_cost(model, 5, 3, 2);
  expect_equal(prefill.linear.flops, 2 * (15 * layer + 3 * head));
  expect_equal(prefill.linear.bytes, 2 * (layer + head) + 2 * (15 * activations + 3 * (6 + 7)));
  expect_equal(prefill.attention.flops, 4 * q * 3 * (1 + 2 + 3 + 4 + 5));
  expect_equal(prefill.attention.bytes, 2 * 15 * (2 * q + 2 * kv));

  PassRead read;
  read.weight_bytes = 0.5;
  read.kv_bytes = 0.25;
  read.ring_tokens = 8;
  const StepCost decode = decode_cost(model, 100, 3, 2, read);
  expect_equal(decode.linear.flops, 2 * 6 * (layer + head));
  expect_equal(decode.linear.bytes, 0.5 * (layer + head) + 2 * 6 * (activations + 6 + 7));
  expect_equal(decode.attention.flops, 4 * q * 3 * (101 + 102));
  expect_equal(decode.attention.bytes, 3 * 2 * kv * (92 * 0.25 + 8 * 2 + 2 * 2) + 2 * 6 * 2 * q);
}

TEST(Cost, OfAPassOverPartOfTheModelIsThatPart) {
  const ModelConfig model = llama2_7b();
  PassRead half;
  half.layers = 0.5;
  ModelConfig short_model = model;
  short_model.num_layers = 16;
  const Cost expected = decode_cost(short_model, 4096, 2, 3, {}).total();
  expect_equal(decode_cost(model, 4096, 2, 3, half).total().bytes, expected.bytes);
  expect_equal(decode_cost(model, 4096, 2, 3, half).total().flops, expected.flops);

  PassRead budget;
  budget.kv_tokens = 1024;
  const Cost attention = decode_cost(model, 4096, 1, 1, budget).attention;
  expect_equal(attention.bytes, decode_cost(model, 1024, 1, 1, {}).attention.bytes);
  expect_equal(attention.flops, decode_cost(model, 1024, 1, 1, {}).attention.flops);
  budget.kv_tokens = 10000;
  expect_equal(decode_cost(model, 4096, 1, 1, budget).total().bytes,
               decode_cost(model, 4096, 1, 1, {}).total().bytes);
}

TEST(Cost, OfTokensIsTheSumOfSteps) {
  const ModelConfig model = llama2_7b();
  const StepCost sum = generation_cost(model, 1000, 2, 3, {});
  StepCost expected;
  for (int context : {1000, 1001, 1002}) {
    expected = expected + decode_cost(model, context, 2, 1, {});
  }
  expect_equal(sum.total().bytes, expected.total().bytes);
  expect_equal(sum.total().flops, expected.total().flops);
}

// --- Table 1's asymptotics ---

TEST(Intensity, OfLinearDecodingIsTheBatch) {
  for (const int batch : {1, 4, 16}) {
    const double intensity = decode_cost(llama2_7b(), 4096, batch, 1, {}).linear.intensity();
    EXPECT_LT(intensity, batch);         // activations, d >> B
    EXPECT_GT(intensity, 0.98 * batch);  // 16 rows of 4096 channels: 1.4%
  }
}

TEST(Intensity, OfDecodingAttentionIsTheHeadsOfAGroup) {
  for (const int batch : {1, 64}) {
    EXPECT_NEAR(decode_cost(llama2_7b(), 32768, batch, 1, {}).attention.intensity(), 1, 1e-3);
    EXPECT_NEAR(decode_cost(llama3_8b(), 32768, batch, 1, {}).attention.intensity(), 4, 1e-3);
  }
}

TEST(Intensity, OfPrefillAttentionIsAQuarterOfTheContext) {
  // 4 Hq D S^2 / 2 FLOPs over 2 S D (2 Hq + 2 Hkv) bytes.
  EXPECT_NEAR(prefill_cost(llama2_7b(), 8192, 4, 2).attention.intensity(), 8192 / 4.0, 1);
  EXPECT_NEAR(prefill_cost(llama3_8b(), 8192, 1, 2).attention.intensity(), 8192 * 32 / 80.0, 1);
}

TEST(Intensity, OfAllDecodingFallsToThatOfAttention) {
  double last = 64;
  for (int context = 1024; context <= 1 << 20; context *= 4) {
    const double intensity = decode_cost(llama2_7b(), context, 64, 1, {}).total().intensity();
    EXPECT_LT(intensity, last) << context;
    last = intensity;
  }
  EXPECT_NEAR(last, 1, 0.03);  // d = 4096 of S = 2^20, and 3 d^2 of MLP
}

TEST(Intensity, PrefillIsComputeBoundAndDecodingIsNot) {
  const Machine a6000 = machine_preset("a6000");
  for (const int context : {1024, 8192, 131072}) {
    for (const int batch : {1, 8, 64}) {
      EXPECT_TRUE(prefill_cost(llama2_7b(), context, batch, 2).total().compute_bound(a6000));
      EXPECT_FALSE(decode_cost(llama2_7b(), context, batch, 1, {}).total().compute_bound(a6000));
    }
  }
}

TEST(AttentionShare, GrowsWithContextAndBatch) {
  const Machine a6000 = machine_preset("a6000");
  double last = 0;
  for (const auto& [context, batch] : {std::pair{1024, 1}, {8192, 1}, {65536, 1}, {65536, 8}}) {
    const double share = decode_cost(llama2_7b(), context, batch, 1, {}).attention_share(a6000);
    EXPECT_GT(share, last);
    last = share;
  }
  EXPECT_LT(last, 1);
}

// --- rounds ---

TEST(PredictRound, FollowsItsFormula) {
  const ModelConfig model = llama2_7b();
  const Machine a6000 = machine_preset("a6000");
  const PassRead draft = pass_read(model, kF16, WeightRead::kUpper, KvRead::kUpper);
  const PassRead target = pass_read(model, kF16, WeightRead::kTarget, KvRead::kBoth);
  const RoundPrediction round = predict_round(a6000, model, 8192, 1, draft, target, 2, 0.5);
  EXPECT_EQ(round.draft_len, 2);
  EXPECT_DOUBLE_EQ(round.tokens, 1.75);
  expect_equal(round.draft_seconds, decode_cost(model, 8192, 1, 1, draft).seconds(a6000));
  expect_equal(round.verify_seconds, decode_cost(model, 8192, 1, 3, target).seconds(a6000));
  expect_equal(round.seconds_per_token(), (2 * round.draft_seconds + round.verify_seconds) / 1.75);
  EXPECT_DOUBLE_EQ(predict_round(a6000, model, 8192, 1, draft, target, 7, 1).tokens, 8);
  EXPECT_DOUBLE_EQ(predict_round(a6000, model, 8192, 1, draft, target, 7, 0).tokens, 1);
  // At 768 GB/s: 3.510 GB of weights, 1.114 GB of pages, 0.101 GB of ring; 13.214, 2.163, 0.101 GB.
  // Activations are below half a percent.
  EXPECT_NEAR(round.draft_seconds, 6.152e-3, 0.02e-3);
  EXPECT_NEAR(round.verify_seconds, 20.153e-3, 0.06e-3);
}

TEST(BestRound, IsTheBestOfAll) {
  const ModelConfig model = llama2_7b();
  for (const std::string_view name : machine_presets()) {
    for (const double acceptance : {0.0, 0.3, 0.8, 0.95, 1.0}) {
      const Machine machine = machine_preset(name);
      const PassRead draft = pass_read(model, kF16, WeightRead::kUpper, KvRead::kUpper);
      const auto predict = [&](int draft_len) {
        return predict_round(machine, model, 32768, 4, draft, {}, draft_len, acceptance);
      };
      const RoundPrediction best = best_round(machine, model, 32768, 4, draft, {}, acceptance, 9);
      EXPECT_LE(best.draft_len, 9);
      for (int draft_len = 0; draft_len <= 9; ++draft_len) {
        EXPECT_LE(best.seconds_per_token(), predict(draft_len).seconds_per_token());
      }
      expect_equal(best.seconds_per_token(), predict(best.draft_len).seconds_per_token());
    }
  }
}

TEST(BestRound, IsPlainDecodingWhereDraftsAreNeverAcceptedAndLongestWhereAlways) {
  const Machine h200 = machine_preset("h200");
  const PassRead cheap{.weight_bytes = 0.1, .kv_bytes = 0.1};
  EXPECT_EQ(best_round(h200, llama2_7b(), 8192, 1, cheap, {}, 0, 16).draft_len, 0);
  EXPECT_EQ(best_round(h200, llama2_7b(), 8192, 1, cheap, {}, 1, 16).draft_len, 16);
}

TEST(BestRound, SpeedsUpMoreWithAcceptance) {
  const Machine a6000 = machine_preset("a6000");
  const PassRead draft = pass_read(llama2_7b(), kF16, WeightRead::kUpper, KvRead::kUpper);
  double last = 1;
  for (const double acceptance : {0.6, 0.7, 0.8, 0.9, 0.99}) {
    const double seconds =
        best_round(a6000, llama2_7b(), 8192, 1, draft, {}, acceptance, 16).seconds_per_token();
    EXPECT_LT(seconds, last);
    last = seconds;
  }
}

// --- machines ---

TEST(MachinePreset, HasTheVendorsNumbers) {
  EXPECT_THAT(machine_presets(), ElementsAre("a6000", "a100", "h100", "h200", "rtx4090"));
  EXPECT_NEAR(machine_preset("a6000").ridge(), 201.6, 0.1);
  EXPECT_NEAR(machine_preset("a100").ridge(), 153.0, 0.1);
  for (const std::string_view name : machine_presets()) {
    const Machine machine = machine_preset(name);
    EXPECT_EQ(machine.name, name);
    EXPECT_GT(machine.bandwidth, 5e11);
    EXPECT_GT(machine.ridge(), 100);
    EXPECT_GE(machine.memory, 24e9);
  }
  EXPECT_GT(machine_preset("h200").bandwidth, machine_preset("h100").bandwidth);
}

TEST(MachinePreset, IsFoundByAGpusName) {
  const auto found = [](std::string_view gpu) {
    const auto machine = machine_named_in(gpu);
    return machine ? machine->name : "";
  };
  EXPECT_EQ(found("NVIDIA H100 80GB HBM3"), "h100");
  EXPECT_EQ(found("cuda (GPU 0: NVIDIA H200, kernels for 9.0)"), "h200");
  EXPECT_EQ(found("NVIDIA A100-SXM4-80GB"), "a100");
  EXPECT_EQ(found("NVIDIA RTX A6000"), "a6000");
  EXPECT_EQ(found("NVIDIA GeForce RTX 4090"), "rtx4090");
  EXPECT_EQ(found("NVIDIA L40S"), "");
  EXPECT_EQ(found(""), "");
}

TEST(MachinePreset, ListsTheKnownForAnUnknownOne) {
  try {
    machine_preset("b200");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidRequest);
    EXPECT_STREQ(error.what(),
                 "machine 'b200': must be one of a6000, a100, h100, h200, rtx4090, this");
  }
}

void expect_sane(const Machine& machine) {
  EXPECT_EQ(machine.name, "this");
  EXPECT_GT(machine.bandwidth, 1e7);  // an unoptimized build under a sanitizer
  EXPECT_LT(machine.bandwidth, 1e13);
  EXPECT_GT(machine.flops, 1e7);
  EXPECT_LT(machine.flops, 1e12);  // of one core
  EXPECT_GT(machine.memory, 1e8);
}

TEST(Doubt, IsWhereAllThreadsReadNoFasterThanOne) {
  Machine machine{"this", 20e9, 1e12, 1e9};
  EXPECT_EQ(doubt_of(machine), "");  // of one thread
  machine.one_thread_bandwidth = 12e9;
  EXPECT_EQ(doubt_of(machine), "");
  machine.one_thread_bandwidth = 20.5e9;
  EXPECT_EQ(doubt_of(machine), "all threads read 20.0 GB/s, one alone 20.5; is the machine busy?");
  machine.one_thread_bandwidth = 19.5e9;  // within the noise
  EXPECT_NE(doubt_of(machine), "");
  EXPECT_EQ(doubt_of(machine_preset("h200")), "");
}

TEST(MeasureThisMachine, MeasuresOneThreadBesideSeveral) {
  EXPECT_FALSE(measure_this_machine(1, 5'000'000).one_thread_bandwidth);
  EXPECT_GT(*measure_this_machine(2, 5'000'000).one_thread_bandwidth, 1e7);
}

TEST(MeasureThisMachine, KeepsDraftsAsItsProcessorDoes) {
  const auto backend = make_backend({.name = "cpu", .num_threads = 1});
  EXPECT_EQ(measure_this_machine(1, 5'000'000).draft_group, backend->encoder().format.group);
  EXPECT_EQ(machine_preset("h100").draft_group, kWeightGroup);
}

TEST(MeasureThisMachine, FindsWhatAMachineCanHave) { expect_sane(measure_this_machine(1)); }

TEST(MeasureThisMachine, ReadsAWorkingSetOfAnySize) {
  expect_sane(measure_this_machine(1, 1));
  expect_sane(measure_this_machine(1, 5'000'000));
}

TEST(MeasureThisMachine, ReadsNoMoreThanIsBeyondTheCaches) {
  expect_sane(measure_this_machine(1, std::size_t{1} << 60));  // more than there is
}

// --- reports ---

RooflineRequest request_for(const Machine& machine) {
  RooflineRequest request;
  request.model = llama2_7b();
  request.weights = kF16;
  request.model_name = "llama-2-7b";
  request.machine = machine;
  request.contexts = {4096, 131072};
  request.batches = {1, 2, 4, 8, 16, 32, 64, 128};
  request.generated = 4;
  request.acceptance = {0.9, 0.95};
  return request;
}

TEST(RooflineJson, HasARowForEveryPoint) {
  const auto request = request_for(machine_preset("a6000"));
  const auto report = nlohmann::json::parse(roofline_json(request));
  EXPECT_EQ(report["meta"]["machine"], "a6000");
  EXPECT_EQ(report["table1"].size(), 2 * 8 * 2 * 3);
  EXPECT_EQ(report["planes"].size(), 2 * 8 * 2);
  EXPECT_EQ(report["kv"].size(), 2 * 8);
  EXPECT_EQ(report["steps"].size(), 2 * 8 * 2);
  const auto& first = report["table1"][3];
  EXPECT_EQ(first["phase"], "decode");
  EXPECT_EQ(first["part"], "linear");
  expect_equal(first["flops"], generation_cost(request.model, 4096, 1, 4, {}).linear.flops);
  EXPECT_EQ(first["bound"], "memory");
  expect_equal(report["kv"][0]["kv_fp16_bytes"], 4096.0 * 512 * 1024);
  EXPECT_TRUE(report["kv"][0]["fp16_fits"]);
  EXPECT_FALSE(report["kv"][8]["fp16_fits"]);  // 68.7 GB and the weights, in 48 GB
  for (const auto& step : report["steps"]) {
    const double ms = step["ms_per_token"];
    expect_equal(step["speedup_fp16"], step["plain_fp16_ms"].get<double>() / ms);
    EXPECT_LE(step["plain_int8_ms"], step["plain_fp16_ms"]);
    EXPECT_LT(step["draft_ms"], step["verify_ms"]);
  }
}

// A GGUF file's codes are the target's, and drafts read a part of them.
TEST(RooflineJson, CountsTheBytesOfATargetInCodes) {
  RooflineRequest request = request_for(machine_preset("a6000"));
  const auto meta = nlohmann::json::parse(roofline_json(request))["meta"];
  expect_equal(meta["weights_bytes"], 2 * stored_parameters(request.model));
  expect_equal(meta["draft_weights_bytes"], 0.53125 * read_parameters(request.model));
  request.weights = weight_bytes(sliced_format());
  const auto report = nlohmann::json::parse(roofline_json(request));
  expect_equal(report["meta"]["weights_bytes"], 1.03125 * stored_parameters(request.model));
  EXPECT_EQ(report["meta"]["draft_weights_bytes"], 0);
  const PassRead read{.weight_bytes = 1.03125};
  expect_equal(report["table1"][0]["bytes"],
               prefill_cost(request.model, 4096, 1, 1.03125).linear.bytes);
  expect_equal(report["table1"][3]["bytes"],
               generation_cost(request.model, 4096, 1, 4, read).linear.bytes);
}

// Where drafts find their weights: in a store, in a part of the target's, in all of them, in both.
TEST(RooflineMarkdown, SaysWhatDraftsRead) {
  RooflineRequest request = request_for(machine_preset("a6000"));
  const auto text_of = [&](const WeightBytes& weights) {
    request.weights = weights;
    return roofline_markdown(request);
  };
  EXPECT_THAT(
      text_of(kF16),
      AllOf(HasSubstr("\n- drafts read 3.51 GB of weights: a 4-bit store beside the target's\n"),
            HasSubstr("the ring; !: with the draft's 4-bit store, too:\n")));
  EXPECT_THAT(text_of(weight_bytes(sliced_format())),
              AllOf(HasSubstr("3.51 GB of weights: the upper four bits of the target's own\n"),
                    HasSubstr("the ring:\n")));
  const WeightFormat q4_0{.bits = 4, .group = 32, .block = 32, .zero = 8};
  EXPECT_THAT(text_of(weight_bytes(q4_0)),
              HasSubstr("3.72 GB of weights: all of the target's own; they save KV alone\n"));
  WeightBytes half = kF16;
  half.kept_for_drafts /= 2;
  EXPECT_THAT(text_of(half),
              HasSubstr("of the target's own codes, and a 4-bit store of 1.76 GB\n"));
}

TEST(RooflineJson, CountsMoreTokensThanAnIntHolds) {
  RooflineRequest request = request_for(machine_preset("a6000"));
  request.contexts = {100'000'000};
  request.batches = {1'000'000};
  const auto kv = nlohmann::json::parse(roofline_json(request))["kv"][0];
  expect_equal(kv["kv_fp16_bytes"], 1e14 * 512 * 1024);
}

TEST(RooflineJson, IsValidWhateverBytesTheModelsNameHas) {
  RooflineRequest request = request_for(machine_preset("a6000"));
  request.model_name = "m\xFF";
  EXPECT_EQ(nlohmann::json::parse(roofline_json(request))["meta"]["model"], "m\xEF\xBF\xBD");
}

TEST(RooflineMarkdown, FitsEightyColumns) {
  for (const std::string_view name : machine_presets()) {
    RooflineRequest request = request_for(machine_preset(name));
    request.generated = 100'000;
    request.contexts = {1'048'576};
    std::istringstream text(roofline_markdown(request));
    int tables = 0;
    for (std::string line; std::getline(text, line);) {
      EXPECT_LE(line.size(), 80u) << line;
      if (line.starts_with("|--") || line.starts_with("|:--")) ++tables;
    }
    EXPECT_EQ(tables, 2 + 2 * (4 + 4 + 2) + 1);  // eight batches take two tables
  }
}

TEST(RooflineMarkdown, MarksWhatIsComputeBoundAndWhatDoesNotFit) {
  const std::string text = roofline_markdown(request_for(machine_preset("a6000")));
  EXPECT_THAT(text, HasSubstr("# Roofline of llama-2-7b on a6000\n"));
  EXPECT_THAT(text, HasSubstr("ridge point: 202 FLOP/byte"));
  EXPECT_THAT(text, HasSubstr("68.7G!"));
}

TEST(Doubt, IsInTheReport) {
  RooflineRequest request = request_for(machine_preset("a6000"));
  EXPECT_EQ(roofline_markdown(request).find("in doubt"), std::string::npos);
  request.machine.one_thread_bandwidth = 2 * request.machine.bandwidth;
  EXPECT_NE(roofline_markdown(request).find("\n- in doubt: all threads read"), std::string::npos);
}

}  // namespace
}  // namespace quantspec
