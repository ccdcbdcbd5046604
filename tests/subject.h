// What exactness is shown of: a model with its weights kept in one way, on one backend.
#pragma once

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tests/gguf_support.h"
#include "tests/model_support.h"

namespace quantspec::testing {

enum class KeptWeights { kElements, kMixedCodes, k8Bits };

struct Subject {
  std::string backend;
  KeptWeights weights = KeptWeights::kElements;

  bool slow() const { return backend == "reference" || backend == "cpu/scalar"; }
};

inline std::string subject_name(const Subject& subject) {
  const char* weights = subject.weights == KeptWeights::kElements     ? ""
                        : subject.weights == KeptWeights::kMixedCodes ? "_q4_k_m"
                                                                      : "_8bits";
  return test_name(subject.backend) + weights;
}
inline std::ostream& operator<<(std::ostream& out, const Subject& subject) {
  return out << subject_name(subject);
}

// A small model of elements on every backend; on the best ones, codes such as a Q4_K_M file mixes,
// and the small model in 8 bits.
inline std::vector<Subject> subjects() {
  std::vector<Subject> all;
  for (const std::string& name : all_backends()) all.push_back({name});
  for (const KeptWeights weights : {KeptWeights::kMixedCodes, KeptWeights::k8Bits}) {
    for (const std::string& name : best_backends()) all.push_back({name, weights});
  }
  return all;
}

// The subject's model. It may be loaded several times.
class SubjectFile {
 public:
  explicit SubjectFile(const Subject& subject) : subject_(subject) {
    if (subject.weights == KeptWeights::kMixedCodes) file_.emplace(q4_k_m_like());
  }

  LoadedModel load(int num_threads, int page_size) const {
    return {file_ ? file_->path : testdata("models/llama-gqa3"),
            subject_.backend,
            num_threads,
            page_size,
            WeightRead::kBoth,
            0,
            subject_.weights == KeptWeights::k8Bits ? TargetWeights::k8Bits
                                                    : TargetWeights::kCheckpoint};
  }

 private:
  Subject subject_;
  std::optional<GgufModelFile> file_;
};

}  // namespace quantspec::testing
