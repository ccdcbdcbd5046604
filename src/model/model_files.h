// A model as people have it: a folder of Hugging Face, or a GGUF file (the first of its parts,
// where it is split). What it is, its tokenizer and its weights, from one place. Thread-safe.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "quant/weight_format.h"

namespace quantspec {

class Tokenizer;
class WeightSource;
class WeightMemory;
struct RowEncoder;
struct NamedChatTemplate;

class ModelFiles {
 public:
  virtual ~ModelFiles() = default;

  // Read once, when it is asked for: a folder without config.json may still have a tokenizer.
  virtual ModelConfig config() const = 0;
  // As load_tokenizer() and make_tokenizer() throw.
  virtual std::unique_ptr<Tokenizer> tokenizer() const = 0;
  // Throws kInvalidRequest where a folder has no checkpoint, kCorruptFile where it is broken.
  virtual std::unique_ptr<WeightSource> weights() const = 0;
  // As the target takes them; 8 bits as the backend's encoder() makes them. Throws kInvalidRequest,
  // too, where a target of 8 bits is asked for and no matrix can become one.
  std::unique_ptr<WeightSource> weights(TargetWeights target, const WeightMemory& memory) const;
  // Of the matrices that passes multiply by, with elements that become codes in the format `kept`.
  // Of a folder's as its config says, so that there need be no checkpoint.
  virtual WeightBytes weight_bytes(TargetWeights target, const WeightFormat& kept) const = 0;
  // Texts of them, none where it has none. What is no text is only warned of (base/log.h).
  virtual std::vector<NamedChatTemplate> chat_templates() const = 0;

 protected:
  std::unique_ptr<WeightSource> encoded(TargetWeights target, const RowEncoder& encoder) const;
};

// Throws kInvalidRequest (cannot be read), kCorruptFile (contradicts itself or its format) or
// kUnsupportedModel; the message names the file and the key.
std::unique_ptr<ModelFiles> open_model(const std::filesystem::path& path);

}  // namespace quantspec
