// The weights of a model where the backend can read them: matrices as they lie in the mapped
// checkpoint, or moved to the backend's memory, fp32 copies of norms and biases, and the planes
// that drafts read (section 4 of docs/design.md). Const use is thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/params/linear.h"
#include "backend/weight_memory.h"
#include "model/config.h"
#include "model/weight_source.h"

namespace quantspec {

class DraftStore;

struct LayerWeights {
  Norm input_norm;  // before attention
  Norm post_norm;   // before the MLP
  Norm q_norm;      // weight null unless ModelConfig::qk_norm
  Norm k_norm;
  Linear q;
  Linear k;
  Linear v;
  Linear o;
  Linear gate;
  Linear up;
  Linear down;
};

// A matrix that drafts read, by the name of its tensor in the checkpoint. The head's is always
// lm_head.weight, also where the checkpoint has but the embedding.
struct NamedLinear {
  std::string name;
  const Linear* linear;
};

// The tensors of a checkpoint that a model of this config does not read, as its files call them;
// those that carry nothing
// (rotary_emb.inv_freq, and lm_head.weight where the head is tied) are left out. Throws what
// loading Weights of the two would, without memory for them: kCorruptFile where the checkpoint
// lacks tensors that the config asks for, or has them in other shapes, has more layers, or a head
// of its own where the config ties it to the embedding; kUnsupportedModel for dtypes.
std::vector<std::string> unread_tensors(const ModelConfig& config, const WeightSource& source);

// In what a target reads each matrix that passes multiply by, the head last.
struct MatrixFormat {
  std::string name;
  std::string format;  // "bf16", "Q4_K", "8 bits"
  WeightFormat layout;
  double weights;  // their number
};
std::vector<MatrixFormat> matrix_formats(const ModelConfig& config, const WeightSource& source);
// The formats, what most weights are in first, for headers and reports: "Q4_K + Q6_K".
std::string describe_formats(std::span<const MatrixFormat> matrices);

class Weights {
 public:
  // Throws as unread_tensors(). `progress` as below.
  Weights(const ModelConfig& config, std::unique_ptr<WeightSource> source, WeightMemory& memory,
          const std::function<void(int, int)>& progress = {});
  Weights(Weights&&) = default;
  Weights& operator=(Weights&&) = default;

  const Matrix& embedding() const { return embedding_; }  // [vocab, hidden]
  const std::vector<LayerWeights>& layers() const { return layers_; }
  const Norm& final_norm() const { return final_norm_; }
  const Linear& head() const { return head_; }  // tied: its target is the embedding
  std::vector<NamedLinear> matrices() const;    // layer by layer, then the head

  // Makes the planes of every matrix that a draft reads with `read`, replacing those made before:
  // kUpper the upper ones only, kBoth both, kTarget none. Of matrices that the target itself reads
  // from planes, drafts read the same ones. `progress(done, total)` counts matrices; it may throw
  // to cancel, which leaves the planes as they were.
  void make_draft_planes(WeightMemory& memory, WeightRead read,
                         const std::function<void(int, int)>& progress = {});
  // The same, with the planes that `store` has. Throws kInvalidRequest naming the draft store where
  // it was made for another checkpoint, or in groups that are not read fast here.
  void use_draft_store(WeightMemory& memory, const DraftStore& store,
                       const std::function<void(int, int)>& progress = {});
  // In what the target reads its matrices (describe_formats()).
  const std::string& target_description() const { return target_description_; }
  // What drafts can read of the planes, for messages: "4 bits, 4 and 8 bits in the head, from
  // FILE".
  std::string draft_description() const;

  // How a plan that reads the layers' upper planes reads the head: at 8 bits where a store keeps
  // them for the head alone, else as the layers.
  WeightRead head_read() const;

  // As the function of that name.
  const std::vector<std::string>& unread_tensors() const { return unread_tensors_; }
  // Warns (base/log.h) where there are any: transformers only warns of them, too.
  void warn_of_unread() const;

  // As MappedFile's: of the checkpoint, where passes read it.
  void require_whole() const;
  void require_unchanged() const;

  const WeightSource& source() const { return *source_; }
  std::uint64_t checkpoint_hash() const { return source_->hash(); }  // reads every byte
  // Of what targets read, and of what drafts read beside it.
  std::size_t target_bytes() const { return target_bytes_; }
  std::size_t draft_bytes() const { return planes_.size(); }
  // What these will be, known before anything is loaded.
  static std::size_t target_bytes_for(const ModelConfig& config, const WeightSource& source,
                                      const WeightMemory& memory);
  static std::size_t draft_bytes_for(const ModelConfig& config, const WeightSource& source,
                                     const WeightMemory& memory, WeightRead read);
  // Throws as use_draft_store() where the store's groups are not for this memory.
  static std::size_t draft_bytes_for(const DraftStore& store, const WeightMemory& memory);

 private:
  class Loader;
  // How one matrix's planes come to be.
  struct PlaneSource {
    bool has_upper;
    bool has_lower;
    WeightFormat format;
    std::function<void(std::byte* upper, std::byte* lower)> fill;
  };
  std::vector<Linear*> draft_linears();
  void replace_planes(WeightMemory& memory, const std::vector<PlaneSource>& sources,
                      const std::function<void(int, int)>& progress);

  std::unique_ptr<WeightSource> source_;
  std::size_t target_bytes_ = 0;
  std::string target_description_;
  std::vector<std::string> unread_tensors_;
  bool reads_source_ = false;     // some matrix is read where it is mapped
  Buffer vectors_;                // norms and biases, fp32
  std::vector<Buffer> matrices_;  // those that are not read where the checkpoint is mapped
  Buffer planes_;
  std::string planes_file_;  // empty: not from a store
  Matrix embedding_;
  std::vector<LayerWeights> layers_;
  Norm final_norm_;
  Linear head_;
};

}  // namespace quantspec
