// Datasets: the first byte says of which kind and in which form the rest is a file. What is read is
// text in UTF-8, from which prompts are cut.
#include "base/utf8.h"
#include "datasets/datasets.h"
#include "fuzz_input.h"
#include "tokenizer/small_tokenizer.h"

using namespace quantspec;

namespace {

struct Form {
  const char* kind;
  const char* name;
};
constexpr Form kForms[] = {{"text", "a.txt"},         {"pg19", "a.jsonl"},
                           {"c4", "a.json"},          {"infinitebench", "longbook_sum_eng.jsonl"},
                           {"multilexsum", "a.json"}, {"wikitext", "a.raw"},
                           {"recall", "a.txt"},       {"text", "a.txt.gz"},
                           {"c4", "a.json.gz"},       {"tasks", "a.jsonl"}};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto tokenizer = make(small_file());
  if (size == 0) return 0;
  const Form& form = kForms[data[0] % std::size(kForms)];
  const auto path =
      memory_folder().write(form.name, {reinterpret_cast<const char*>(data) + 1, size - 1});
  try {
    const Dataset dataset = Dataset::load(std::string(form.kind) + ":" + path.string());
    require(!dataset.documents().empty());
    for (const Document& document : dataset.documents()) {
      require(repair_utf8(document.text) == document.text);
      require(repair_utf8(document.question + document.answer) ==
              document.question + document.answer);
    }
    const int length = size % 2 == 0 ? 60 : 3;
    const auto prompts =
        dataset.prompts(*tokenizer, {.length = length, .count = 3, .fewer_will_do = true});
    require(!prompts.empty());
    for (const Prompt& prompt : prompts) require(prompt.tokens.size() == std::size_t(length));
  } catch (const Error& error) {
    refused(error);
  }
  return 0;
}
