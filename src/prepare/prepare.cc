#include "prepare/prepare.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/files.h"
#include "datasets/datasets.h"
#include "model/draft_store.h"
#include "model/model.h"
#include "model/model_files.h"
#include "model/weight_source.h"
#include "prepare/fields.h"
#include "prepare/observer.h"
#include "prepare/quantize.h"
#include "tokenizer/tokenizer.h"

namespace quantspec {

namespace {

constexpr int kSequenceTokens = 2048;  // of calibration text, each from the start
constexpr float kDamping = 0.01f;      // section 3.3 of arXiv:2210.17323
// Sums of inputs that are kept at once; larger models read the text several times.
constexpr std::size_t kGramBytes = std::size_t{2} << 30;

using Progress = std::function<void(std::string_view, double)>;

// One matrix to make, and the one whose input is watched for it.
struct Job {
  NamedLinear matrix;
  const Linear* input;
};

std::vector<Job> list_jobs(const Weights& weights) {
  std::map<const Linear*, const Linear*> input_of;
  for (const LayerWeights& layer : weights.layers()) {
    input_of[&layer.k] = input_of[&layer.v] = &layer.q;
    input_of[&layer.up] = &layer.gate;
  }
  std::vector<Job> jobs;
  for (const NamedLinear& matrix : weights.matrices()) {
    const auto found = input_of.find(matrix.linear);
    jobs.push_back({matrix, found == input_of.end() ? matrix.linear : found->second});
  }
  return jobs;
}

// The jobs in runs whose sums of inputs fit into kGramBytes.
std::vector<std::span<const Job>> split_jobs(std::span<const Job> jobs) {
  std::vector<std::span<const Job>> runs;
  std::size_t first = 0, bytes = 0;
  const Linear* last_input = nullptr;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (jobs[i].input == last_input) continue;
    last_input = jobs[i].input;
    const std::size_t needed =
        sizeof(float) * static_cast<std::size_t>(last_input->inputs()) * last_input->inputs();
    if (i > first && bytes + needed > kGramBytes) {
      runs.push_back(jobs.subspan(first, i - first));
      first = i;
      bytes = 0;
    }
    bytes += needed;
  }
  runs.push_back(jobs.subspan(first));
  return runs;
}

// `count` sequences of calibration text.
std::vector<Prompt> cut_sequences(const PrepareOptions& options, int length, int count) {
  const auto tokenizer = open_model(options.model)->tokenizer();
  const Dataset dataset = Dataset::load(options.calibration, field::kCalibration);
  std::vector<Prompt> sequences;
  try {
    sequences =
        dataset.prompts(*tokenizer, {.length = length, .count = count, .fewer_will_do = true});
  } catch (const Error& error) {
    fail(error.kind(),
         "{}; calibration reads {} {} in sequences of {}: longer texts or fewer {} work",
         error.message(), field::kCalibrationTokens, options.calibration_tokens, length,
         field::kCalibrationTokens);
  }
  const int found = static_cast<int>(sequences.size());
  if (found < count) {
    fail(
        ErrorKind::kInvalidRequest,
        "{} '{}': calibration needs {} sequences of {} tokens for {} {}, and the text has {}; more "
        "text or {} {} works",
        field::kCalibration, options.calibration, count, length, field::kCalibrationTokens,
        options.calibration_tokens, found, field::kCalibrationTokens, found * length);
  }
  return sequences;
}

std::vector<Prompt> load_calibration(const PrepareOptions& options, const ModelConfig& config) {
  if (options.calibration.empty()) return {};
  int length = std::min({kSequenceTokens, options.calibration_tokens, config.max_positions});
  if (config.sliding_window) length = std::min(length, *config.sliding_window);
  const int count = std::max(1, options.calibration_tokens / length);
  auto prompts = cut_sequences(options, length, count);
  for (const Prompt& prompt : prompts) {
    if (*std::max_element(prompt.tokens.begin(), prompt.tokens.end()) >= config.vocab_size) {
      fail(ErrorKind::kCorruptFile, "{}: the tokenizer has ids beyond the model's vocabulary of {}",
           options.model.string(), config.vocab_size);
    }
  }
  return prompts;
}

Model load_model(const PrepareOptions& options, Backend& backend) {
  const auto files = open_model(options.model);
  Weights weights(files->config(), files->weights(), backend);
  weights.warn_of_unread();
  for (const auto& [name, linear] : weights.matrices()) {
    if (linear->target.format.dense()) continue;
    fail(ErrorKind::kInvalidRequest,
         "{}: has {} in {}; drafts are prepared of checkpoints of bf16, fp16 or fp32",
         options.model.string(), weights.source().own_name(name),
         weights.source().format_name(name));
  }
  return Model(files->config(), std::move(weights), backend);
}

void require_valid(const PrepareOptions& options) {
  if (options.group != 0 && options.group != kFineGroup && options.group != 64 &&
      options.group != 128) {
    fail(ErrorKind::kInvalidRequest, "{} {}: supported are 32, 64 and 128", field::kGroup,
         options.group);
  }
  if (options.head_bits != 4 && options.head_bits != 8) {
    fail(ErrorKind::kInvalidRequest, "{} {}: supported are 4 and 8", field::kHeadBits,
         options.head_bits);
  }
  if (options.calibration_tokens < kLeastCalibrationTokens) {
    fail(ErrorKind::kInvalidRequest, "{} {}: must be {} or more", field::kCalibrationTokens,
         options.calibration_tokens, kLeastCalibrationTokens);
  }
  if (options.method == DraftMethod::kGptq && options.calibration.empty()) {
    fail(ErrorKind::kInvalidRequest,
         "{} gptq: needs text to calibrate on; give {} KIND:PATH, or use rtn", field::kMethod,
         field::kCalibration);
  }
}

void require_finite(ThreadPool& pool, const NamedLinear& matrix, const PrepareOptions& options) {
  const Matrix& w = matrix.linear->target;
  pool.parallel_for(w.rows, [&](std::int64_t row, int) {
    for (int c = 0; c < w.cols; ++c) {
      if (std::isfinite(load_f32(w.data, w.format.dtype, row * w.cols + c))) continue;
      fail(ErrorKind::kCorruptFile, "{}: {} has weights that are not finite",
           options.model.string(), matrix.name);
    }
  });
}

// What goes into matrices is summed up on the host.
BackendOptions on_host(BackendOptions options) {
  if (options.name == "cuda") {
    fail(ErrorKind::kInvalidRequest, "{} cuda: draft weights are prepared by cpu or reference",
         field::kBackend);
  }
  if (options.name == "auto") options.name = "cpu";
  return options;
}

// Of a row's scales and offsets.
std::size_t parameter_bytes(const WeightFormat& format, int cols) {
  const int subs = format.two_levels() ? 2 * format.groups(cols) : 0;
  return sizeof(GroupScale) * format.blocks(cols) + static_cast<std::size_t>(subs);
}

// By default in the groups that suit the machine that `auto` runs on, though weights are prepared
// on the host.
RowEncoder encoder_for(const PrepareOptions& options, const Backend& host) {
  RowEncoder encoder = host.encoder();
  const int group =
      options.group > 0 ? options.group : make_backend(options.backend)->encoder().format.group;
  encoder.format = sliced_format(group);
  return encoder;
}

class Preparer {
 public:
  Preparer(const PrepareOptions& options, const Progress& progress)
      : options_(options),
        progress_(progress),
        pool_(options.backend.num_threads > 0 ? options.backend.num_threads : num_physical_cores()),
        backend_(make_backend(on_host(options.backend))),
        encoder_(encoder_for(options, *backend_)),
        inputs_(pool_),
        model_(load_model(options, *backend_)),
        text_(load_calibration(options, model_.config())) {
    for (const Prompt& prompt : text_) summary_.calibration_tokens += std::ssize(prompt.tokens);
  }

  PrepareSummary run(const std::function<void()>& begin) {
    const std::vector<Job> jobs = list_jobs(model_.weights());
    const auto runs = split_jobs(jobs);
    const auto checkpoint = model_.weights().checkpoint_hash();  // reads all of it
    if (begin) begin();
    DraftStoreWriter writer(options_.output,
                            {.method = options_.method == DraftMethod::kGptq ? "gptq" : "rtn",
                             .calibration = options_.calibration,
                             .calibration_tokens = summary_.calibration_tokens,
                             .group = encoder_.format.group,
                             .checkpoint = checkpoint},
                            entries(jobs));
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const Grams grams = watch(runs[i], i, runs.size());
      const Gram* factored = nullptr;
      std::vector<float> factor;
      for (const Job& job : runs[i]) {
        const Gram* inputs = grams.empty() ? nullptr : &grams.at(job.input);
        if (uses_gptq(job) && inputs != factored) {
          factor = inverse_factor(pool_, *inputs, kDamping);
          factored = inputs;
        }
        make(job, inputs, factor, writer);
        report("rounding weights", static_cast<double>(++made_) / std::ssize(jobs));
      }
    }
    model_.weights().source().require_unchanged();
    writer.finish();
    summarize(jobs);
    return summary_;
  }

 private:
  using Grams = std::map<const Linear*, Gram>;

  bool is_wide(const Job& job) const {
    return options_.head_bits == 8 && job.matrix.linear == &model_.weights().head();
  }
  bool uses_gptq(const Job& job) const {
    return options_.method == DraftMethod::kGptq && !is_wide(job);
  }
  void report(std::string_view stage, double done) const {
    if (progress_) progress_(stage, done);
  }

  std::vector<StoredMatrix> entries(const std::vector<Job>& jobs) const {
    std::vector<StoredMatrix> entries;
    for (const Job& job : jobs) {
      const Linear& linear = *job.matrix.linear;
      entries.push_back({job.matrix.name, linear.outputs(), linear.inputs(), is_wide(job)});
    }
    return entries;
  }

  // The inputs of a run's matrices over the calibration text.
  Grams watch(std::span<const Job> run, std::size_t index, std::size_t runs) {
    if (text_.empty()) return {};
    std::set<const Linear*> inputs;
    for (const Job& job : run) inputs.insert(job.input);
    inputs_.watch(inputs);
    const double all = static_cast<double>(runs) * summary_.calibration_tokens;
    double done = static_cast<double>(index) * summary_.calibration_tokens;
    for (const Prompt& prompt : text_) {
      forward(prompt.tokens, [&](int tokens) {
        done += tokens;
        report("calibrating", done / all);
      });
    }
    return inputs_.take();
  }

  void forward(std::span<const TokenId> tokens, const std::function<void(int)>& done) {
    const ModelConfig& config = model_.config();
    PagePool pages(*backend_, kv_shape(config, 0));
    KvCache cache(*backend_, pages, static_cast<int>(tokens.size()));
    const Plan plan = Plan::target(config.num_layers);
    std::vector<float> logits;
    while (!tokens.empty()) {
      const auto count =
          std::min<std::size_t>(tokens.size(), static_cast<std::size_t>(cache.max_rows()));
      logits.resize(count * config.vocab_size);
      cache.reserve(static_cast<int>(count));
      const SequenceInput input{tokens.first(count), &cache};
      model_.forward({&input, 1}, plan, logits, &inputs_);
      cache.settle(static_cast<int>(count));
      tokens = tokens.subspan(count);
      done(static_cast<int>(count));
    }
  }

  void make(const Job& job, const Gram* inputs, const std::vector<float>& factor,
            DraftStoreWriter& writer) {
    const Matrix& full = job.matrix.linear->target;
    require_finite(pool_, job.matrix, options_);
    std::optional<Codes> codes;
    if (uses_gptq(job)) codes = gptq(pool_, full, encoder_.format, *inputs, factor);
    if (!codes || inputs != nullptr) {
      const Codes nearest = round_to_nearest(pool_, full, encoder_);
      if (inputs != nullptr) {
        const double rtn_error = output_error(pool_, full, nearest.view(), *inputs);
        summary_.rtn_error += rtn_error;
        summary_.error += codes ? output_error(pool_, full, codes->view(), *inputs) : rtn_error;
      }
      if (!codes) codes = nearest;
    }
    writer.add(codes->view());
  }

  void summarize(const std::vector<Job>& jobs) {
    double bits = 0.0;
    for (const Job& job : jobs) {
      const Linear& linear = *job.matrix.linear;
      const double weights = static_cast<double>(linear.outputs()) * linear.inputs();
      summary_.weights += static_cast<std::size_t>(weights);
      bits += weights * (is_wide(job) ? 8 : 4) +
              8.0 * linear.outputs() * parameter_bytes(encoder_.format, linear.inputs());
    }
    summary_.bits_per_weight = bits / static_cast<double>(summary_.weights);
    summary_.error /= static_cast<double>(jobs.size());
    summary_.rtn_error /= static_cast<double>(jobs.size());
    summary_.seconds = time_.seconds();
  }

  const PrepareOptions& options_;
  const Progress& progress_;
  Stopwatch time_;
  ThreadPool pool_;
  std::unique_ptr<Backend> backend_;
  RowEncoder encoder_;
  InputSums inputs_;
  Model model_;
  std::vector<Prompt> text_;
  int made_ = 0;
  PrepareSummary summary_;
};

}  // namespace

PrepareSummary prepare_draft_store(const PrepareOptions& options, const Progress& progress,
                                   const std::function<void()>& begin) {
  require_valid(options);
  NewFile::require_possible(options.output);
  return Preparer(options, progress).run(begin);
}

}  // namespace quantspec
