#include "model/plan.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/clock.h"
#include "base/expect_error.h"
#include "base/files.h"
#include "base/json.h"

namespace quantspec {
namespace {

constexpr PlanContext kContext{.num_layers = 6, .page_size = 128};
constexpr KvBudget kQuarter = KvBudget::one_in(4);

TEST(Plan, NamesMeanWhatTheySay) {
  const Plan quantspec = make_plan("quantspec", kContext);
  EXPECT_EQ(quantspec, (Plan::uniform("quantspec", 6, WeightRead::kUpper, {})));
  EXPECT_EQ(make_plan("quantspec+w8", kContext).layers, Plan::draft(6, WeightRead::kBoth).layers);
  EXPECT_EQ(make_plan("kv-only", kContext).layers, Plan::draft(6, WeightRead::kTarget).layers);
  EXPECT_EQ(make_plan("weights-only+w8", kContext).layers[3],
            (LayerPlan{true, WeightRead::kBoth, {KvRead::kBoth}}));
  EXPECT_EQ(make_plan("snapkv+w4", kContext).layers[0],
            (LayerPlan{true, WeightRead::kUpper, {KvRead::kUpper, KvTokens::kSnap, kQuarter}}));
  EXPECT_EQ(make_plan("quantspec+sparse", kContext).layers[0].kv,
            (KvAccess{KvRead::kUpper, KvTokens::kByMass, kQuarter}));
  PlanContext budget = kContext;
  budget.budget = 1000;
  EXPECT_EQ(make_plan("quantspec+bounds", budget).layers[0].kv,
            (KvAccess{KvRead::kUpper, KvTokens::kByBound, 1000}));
  EXPECT_EQ(make_plan("streaming", budget).layers[5].kv.budget, KvBudget(1000));
  budget.budget = KvBudget::one_in(32);
  EXPECT_EQ(make_plan("quantspec+sparse", budget).layers[0].kv.budget, KvBudget::one_in(32));
}

TEST(Plan, ChoosesByMassWhereALayerThatRunsDoes) {
  EXPECT_FALSE(make_plan("quantspec+bounds", kContext).chooses_by_mass());
  EXPECT_FALSE(Plan::lookup().chooses_by_mass());
  Plan sparse = make_plan("quantspec+sparse", kContext);
  EXPECT_TRUE(sparse.chooses_by_mass());
  for (LayerPlan& layer : sparse.layers) layer.run = false;
  EXPECT_FALSE(sparse.chooses_by_mass());
}

TEST(Plan, TheHeadIsReadAsTheLayersAre) {
  EXPECT_EQ(make_plan("quantspec", kContext).head, WeightRead::kUpper);
  EXPECT_EQ(make_plan("quantspec+w8", kContext).head, WeightRead::kBoth);
  EXPECT_EQ(make_plan("streaming", kContext).head, WeightRead::kTarget);
}

TEST(Plan, ADraftStoreMayKeepTheHeadOf4BitWeightsAtMore) {
  PlanContext context = kContext;
  context.upper_head = WeightRead::kBoth;
  EXPECT_EQ(make_plan("quantspec", context).head, WeightRead::kBoth);
  EXPECT_EQ(make_plan("streaming+w4", context).head, WeightRead::kBoth);
  EXPECT_EQ(make_plan("quantspec+wfull", context).head, WeightRead::kTarget);
}

TEST(Plan, TheHeadOf4BitWeightsMayBeReadAt8) {
  const Plan wide = make_plan("quantspec+h8", kContext);
  EXPECT_EQ(wide.layers, make_plan("quantspec", kContext).layers);
  EXPECT_EQ(wide.head, WeightRead::kBoth);
  EXPECT_EQ(make_plan("streaming+h8+w4", kContext).name, "streaming+w4+h8");
  for (const char* spec : {"quantspec+w8+h8", "kv-only+h8"}) {
    expect_error(ErrorKind::kInvalidRequest, {spec, "+h8 is for 4-bit weights"},
                 [&] { make_plan(spec, kContext); });
  }
  PlanContext store = kContext;
  store.upper_head = WeightRead::kBoth;
  EXPECT_EQ(make_plan("quantspec+h8", store).name, "quantspec");
  EXPECT_EQ(auto_plans(store).size(), 7u);
}

TEST(Plan, HasOneNameHoweverItIsSpelt) {
  const auto name = [](const char* spec) { return make_plan(spec, kContext).name; };
  EXPECT_EQ(name("quantspec"), "quantspec");
  EXPECT_EQ(name("quantspec+w4"), "quantspec");
  EXPECT_EQ(name("streaming+wfull"), "streaming");
  EXPECT_EQ(name("streaming+w4"), "streaming+w4");
  EXPECT_EQ(name("quantspec+w8+sparse"), "quantspec+sparse+w8");
  EXPECT_EQ(name("layer-skip:1,3-4+bounds+wfull"), "layer-skip:1,3-4+bounds");
  EXPECT_EQ(Plan::draft(6, WeightRead::kUpper).name, "quantspec");
}

TEST(Plan, TakesOneModifierOfAKind) {
  const auto refused = [](const char* spec, const char* what) {
    expect_error(ErrorKind::kInvalidRequest, {std::string("plan ") + spec, what},
                 [&] { make_plan(spec, kContext); });
  };
  refused("quantspec+w4+w4", "+w4 stands there twice");
  refused("quantspec+w4+w8", "+w4 and +w8 exclude each other");
  refused("quantspec+sparse+w8+bounds", "+sparse and +bounds exclude each other");
}

TEST(Plan, LayerSkipLeavesLayersOut) {
  const Plan plan = make_plan("layer-skip:1,3-4+w4", kContext);
  for (int layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(plan.layers[layer].run, layer == 0 || layer == 2 || layer == 5);
    EXPECT_EQ(plan.layers[layer].weights, WeightRead::kUpper);
  }
  for (const char* list : {"6", "1,", "a", "", "3-", "0-5", "-1", "4-2", "0,3-1", "1,,2"}) {
    expect_error(ErrorKind::kInvalidRequest, {"plan layer-skip:", "0 to 5"},
                 [&] { make_plan(std::string("layer-skip:") + list, kContext); });
  }
}

TEST(Plan, UnknownNamesListTheKnownOnes) {
  expect_error(ErrorKind::kInvalidRequest,
               {"'quantspek'", "quantspec, weights-only", "snapkv", "plan:FILE", "auto", "all",
                "+w4, +w8, +wfull, +sparse, +bounds, +h8"},
               [&] { make_plan("quantspek", kContext); });
  expect_error(ErrorKind::kInvalidRequest, {"'w5'", "w4, w8", "bounds"},
               [&] { make_plan("quantspec+w5", kContext); });
  expect_error(ErrorKind::kInvalidRequest, {"''"}, [&] { make_plan("quantspec+", kContext); });
  expect_error(ErrorKind::kInvalidRequest, {"plan auto", "modifiers"},
               [&] { make_plan("auto+w4", kContext); });
  expect_error(ErrorKind::kInvalidRequest, {"plan all", "bench alone", "modifiers"},
               [&] { make_plan("all+w4", kContext); });
  expect_error(ErrorKind::kInvalidRequest, {"no pages"},
               [&] { make_plan("streaming+sparse", kContext); });
}

TEST(Plan, RefusesBudgetsOfLessThanAPage) {
  PlanContext context = kContext;
  context.budget = 100;
  expect_error(ErrorKind::kInvalidRequest,
               {"plan quantspec+sparse: draft budget 100: must be 128 tokens or more", "1/4"},
               [&] { make_plan("quantspec+sparse", context); });
  context.budget = 63;
  expect_error(ErrorKind::kInvalidRequest, {"plan streaming", "must be 64 tokens or more"},
               [&] { make_plan("streaming", context); });
  context.budget = 128;
  EXPECT_EQ(make_plan("quantspec+sparse", context).layers[0].kv.budget, KvBudget(128));
}

TEST(PlanAt, KnowsWhatItGathers) {
  const Plan snap = plan_at(make_plan("snapkv", kContext), 8192, 128, "snapkv");
  EXPECT_EQ(snap.layers[0].kv.budget, KvBudget(2048));
  const Plan sparse = make_plan("quantspec+sparse", kContext);  // a share of what is there then
  EXPECT_EQ(plan_at(sparse, 8192, 128, "sparse"), sparse);
  const Plan dense = make_plan("quantspec", kContext);
  EXPECT_EQ(plan_at(dense, 1, 128, "dense"), dense);
}

TEST(PlanAt, RefusesBudgetsThatDoNotFit) {
  PlanContext context = kContext;
  for (const int budget : {8192, 100000}) {
    context.budget = budget;
    expect_error(ErrorKind::kInvalidRequest,
                 {"mine: draft budget", "context of 8192", "from 128 to 8191"},
                 [&] { plan_at(make_plan("quantspec+sparse", context), 8192, 128, "mine"); });
  }
  const Plan quarter = make_plan("quantspec+sparse", kContext);
  expect_error(ErrorKind::kInvalidRequest,
               {"mine: draft budget 1/4 is 100 tokens; from 128 to 399 tokens fit"},
               [&] { plan_at(quarter, 400, 128, "mine"); });
  expect_error(ErrorKind::kInvalidRequest,
               {"mine: of a prompt of 128 tokens there is nothing to leave out"},
               [&] { plan_at(quarter, 128, 128, "mine"); });
}

TEST(Plan, AutoChoosesAmongFewerPagesInLongTexts) {
  const auto plans = auto_plans(kContext);
  ASSERT_EQ(plans.size(), 10u);
  EXPECT_EQ(plans[4].layers[0].kv.budget, kQuarter);
  EXPECT_EQ(plans[9].layers[0].kv.budget, KvBudget::one_in(16));
  // They differ in name, so that a log can tell them apart.
  EXPECT_EQ(plans[0].name, "quantspec");
  EXPECT_EQ(plans[1].name, "quantspec+h8");
  EXPECT_EQ(plans[6].name, "quantspec+sparse+w8@1/4");
  EXPECT_EQ(plans[9].name, "quantspec+sparse+w8@1/16");
  // Less than four pages are not worth it.
  EXPECT_EQ(plans[0].from_tokens, 0);
  EXPECT_EQ(plans[4].from_tokens, 4 * 4 * 128);
  EXPECT_EQ(plans[9].from_tokens, 16 * 4 * 128);
}

TEST(Plan, AutoHasTheBudgetThatIsGiven) {
  PlanContext context = kContext;
  context.budget = 1024;
  const auto plans = auto_plans(context);
  ASSERT_EQ(plans.size(), 7u);
  EXPECT_EQ(plans.back().name, "quantspec+sparse+w8@1024");
  EXPECT_EQ(plans.back().layers[0].kv.budget, KvBudget(1024));
  // From so many tokens on there is a page more than it reads.
  const int from = plans.back().from_tokens;
  EXPECT_EQ(first_full_position(from, 128), 1024 + 128);
  EXPECT_EQ(first_full_position(from - 1, 128), 1024);
  context.budget = KvBudget::one_in(KvBudget::kMost);
  EXPECT_EQ(auto_plans(context).back().from_tokens, std::numeric_limits<int>::max());
}

// A plan that was asked for is used for every text.
TEST(Plan, IsForTextsOfAnyLength) {
  for (const char* name : {"quantspec", "quantspec+sparse", "quantspec+bounds+w8", "streaming"}) {
    EXPECT_EQ(make_plan(name, kContext).from_tokens, 0) << name;
  }
}

TEST(Plan, ACacheIsMadeForAllPlans) {
  const KvOptions options =
      kv_options({make_plan("quantspec", kContext), make_plan("snapkv", kContext),
                  make_plan("snapkv+w4", kContext), make_plan("quantspec+sparse", kContext)});
  EXPECT_EQ(options.accesses.size(), 2u);
  Plan other = make_plan("quantspec", kContext);
  other.target_full_layers = {1};
  expect_error(ErrorKind::kInvalidRequest, {"different targets"}, [&] {
    kv_options({make_plan("quantspec", kContext), other});
  });
}

// --- files ---------------------------------------------------------------------------------------

class PlanFile : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    std::ofstream(file_) << text;
    return file_;
  }
  std::filesystem::path file_ =
      std::filesystem::path(::testing::TempDir()) /
      (std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + ".json");
};

TEST_F(PlanFile, IsReadLayerByLayer) {
  const auto file = write(R"({
    "name": "mine", "default": {"weights": 8, "pages": "mass", "budget": 640},
    "head": {"weights": "full"},
    "layers": [{"layer": 0, "kv": "full", "pages": "all", "weights": 16},
               {"layer": 2, "budget": "1/8"}, {"layer": 3, "run": false},
               {"layer": 4, "pages": "bounds", "weights": 4}, {"layer": 5, "pages": "none"}],
    "target_full_layers": [0]})");
  const Plan plan = make_plan("plan:" + file.string(), kContext);
  EXPECT_EQ(plan.name, "plan:mine");
  EXPECT_EQ(plan.head, WeightRead::kTarget);
  EXPECT_EQ(plan.layers[0], (LayerPlan{true, WeightRead::kTarget, {KvRead::kFull}}));
  EXPECT_EQ(plan.layers[1],
            (LayerPlan{true, WeightRead::kBoth, {KvRead::kUpper, KvTokens::kByMass, 640}}));
  EXPECT_EQ(plan.layers[2].kv, (KvAccess{KvRead::kUpper, KvTokens::kByMass, KvBudget::one_in(8)}));
  EXPECT_FALSE(plan.layers[3].run);
  EXPECT_EQ(plan.layers[4].kv, (KvAccess{KvRead::kUpper, KvTokens::kByBound, 640}));
  EXPECT_EQ(plan.layers[5].kv, (KvAccess{KvRead::kUpper, KvTokens::kNone}));
  EXPECT_EQ(plan.target_full_layers, std::vector{0});
}

TEST_F(PlanFile, WithoutABudgetHasTheOneThatIsGiven) {
  PlanContext context = kContext;
  const auto file = write(R"({"default": {"pages": "mass"}})");
  EXPECT_EQ(read_plan_file(file, context).layers[0].kv.budget, kQuarter);
  context.budget = 512;
  EXPECT_EQ(read_plan_file(file, context).layers[0].kv.budget, KvBudget(512));
}

TEST_F(PlanFile, SurvivesWritingAndReading) {
  Plan plan = make_plan("quantspec+sparse+w8", kContext);
  EXPECT_EQ(plan.layers[0].kv.budget, kQuarter);
  plan.name = "plan:written";
  plan.layers[2] = {false, WeightRead::kUpper, {KvRead::kBoth}};
  plan.layers[4].kv = {KvRead::kUpper, KvTokens::kByBound, 256};
  plan.head = WeightRead::kTarget;
  plan.target_full_layers = {1, 2};
  plan.layers[1].kv = {KvRead::kFull};
  plan.layers[5].kv = {KvRead::kUpper, KvTokens::kStreaming, 100};
  NewFile file(file_);
  write_plan_file(plan, file);
  EXPECT_EQ(read_plan_file(file_, kContext), plan);
  EXPECT_EQ(parse_json_file(file_)["head"]["weights"], "full");  // of any format
}

// Reading was quadratic in the layers of the list: 100,000 took minutes.
TEST_F(PlanFile, ALongListIsRefusedSoon) {
  std::string text = R"({"layers": [{"layer": 0})";
  for (int i = 1; i < 100'000; ++i) text += R"(, {"layer": 1, "weights": 8, "kv": "upper"})";
  const auto file = write(text + "]}");
  const Stopwatch clock;
  expect_error(ErrorKind::kCorruptFile, {"layers must be a list of up to 6"},
               [&] { read_plan_file(file, kContext); });
  EXPECT_LT(clock.seconds(), 10);
}

TEST_F(PlanFile, WithoutANameIsNamedByItsPath) {
  const auto file = write("{}");
  EXPECT_EQ(make_plan("plan:" + file.string(), kContext).name, "plan:" + file.string());
}

TEST_F(PlanFile, IsObeyedInTheHeadItAsksFor) {
  PlanContext context = kContext;
  context.upper_head = WeightRead::kBoth;
  EXPECT_EQ(read_plan_file(write(R"({"head": {"weights": 4}})"), context).head, WeightRead::kUpper);
}

TEST_F(PlanFile, WithoutAHeadReadsItAs4BitWeightsDo) {
  PlanContext context = kContext;
  context.upper_head = WeightRead::kBoth;
  EXPECT_EQ(read_plan_file(write("{}"), context).head, WeightRead::kBoth);
}

TEST_F(PlanFile, SaysWhatIsWrong) {
  const auto expect = [&](const std::string& text, ErrorKind kind,
                          const std::vector<std::string>& parts) {
    const auto file = write(text);
    expect_error(kind, parts, [&] { read_plan_file(file, kContext); });
  };
  expect(R"({"layers": [{"layer": 6}]})", ErrorKind::kCorruptFile, {"layer", "5", "6"});
  expect(R"({"layers": [{"layer": 1, "weights": 5}]})", ErrorKind::kCorruptFile,
         {"4, 8 or \"full\""});
  expect(R"({"layers": [{"layer": 1, "kv": "half"}]})", ErrorKind::kCorruptFile, {"upper, both"});
  expect(R"({"default": {"pages": "some"}})", ErrorKind::kCorruptFile, {"all, none, mass"});
  expect(R"({"default": {"pages": "mass", "budget": 100}})", ErrorKind::kInvalidRequest,
         {"budget"});
  expect(R"({"default": {"run": false}})", ErrorKind::kInvalidRequest, {"false for every layer"});
  expect(R"({"default": {"weigths": 8}})", ErrorKind::kCorruptFile,
         {"default: there is no key \"weigths\"; known are run, weights, kv"});
  expect(R"({"target_ful_layers": [0]})", ErrorKind::kCorruptFile, {"target_full_layers"});
  expect(R"({"default": {"pages": "mass", "budget": 127}})", ErrorKind::kInvalidRequest,
         {".json: default: draft budget 127: must be 128 tokens or more"});
  for (const char* budget :
       {"0", "-1", "1073741825", "1.5", "\"512\"", "\"1/1\"", "\"2/3\"", "[]", "true"}) {
    expect(fmt::format(R"({{"default": {{"pages": "mass", "budget": {}}}}})", budget),
           ErrorKind::kCorruptFile, {"default: budget must be tokens, from 1", "\"1/4\"", budget});
  }
  expect(R"({"default": {"budget": 512}})", ErrorKind::kCorruptFile,
         {"default: a budget of 512 makes no sense where pages are \"all\""});
  expect(R"({"default": {"layer": 1}})", ErrorKind::kCorruptFile, {"there is no key \"layer\""});
  expect(R"({"layers": [{"layer": 1}, {"layer": 1}]})", ErrorKind::kCorruptFile,
         {"layers[1]: layer 1 is in the list already"});
  expect(R"({"layers": [{"layer": 1, "weights": 32}]})", ErrorKind::kCorruptFile,
         {"layers[0]: weights must be 4, 8 or \"full\", found 32"});
  expect(R"({"target_full_layers": [1, 1]})", ErrorKind::kCorruptFile, {"has layer 1 twice"});
  expect(R"({"name": ""})", ErrorKind::kCorruptFile, {"name must be some text"});
  expect(R"({"default": {"kv": "full", "pages": "none"}, "target_full_layers": [0,1,2,3,4,5]})",
         ErrorKind::kInvalidRequest, {"must be \"all\""});
  expect(R"({"layers": {}})", ErrorKind::kCorruptFile, {"layers"});
  expect("{", ErrorKind::kCorruptFile, {".json"});
  expect(R"({"default": {"kv": "full"}})", ErrorKind::kInvalidRequest, {"target_full_layers"});
  expect(R"({"target_full_layers": [0], "default": {"pages": "mass"}})", ErrorKind::kInvalidRequest,
         {"bounds"});
  EXPECT_THROW(read_plan_file("/nowhere/plan.json", kContext), Error);
}

}  // namespace
}  // namespace quantspec
