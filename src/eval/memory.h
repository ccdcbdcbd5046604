// What a measurement takes besides the model that is loaded: it holds several caches side by side,
// some of them in full precision. Private to eval/.
#pragma once

#include <cstddef>
#include <vector>

#include "eval/eval.h"

namespace quantspec {

// What a cache must give for a variant.
KvOptions kv_options(const Variant& variant);

// At most, of a cache of so many tokens: pages, ring, gathered tokens.
std::size_t cache_bytes(const EvalModel& model, int capacity, const KvOptions& options);
// Of a prefill of so many tokens and of rounds of so many sequences, which comes on top. chunk: as
// in KvOptions.
std::size_t prefill_bytes(const EvalModel& model, int capacity, int chunk = 0, int sequences = 1);
// Of all variants' caches at once, and of the distributions that are compared.
std::size_t variants_bytes(const EvalModel& model, const std::vector<Variant>& variants,
                           int capacity);
// Of a trial of these plans' drafts: one cache, and the distributions.
std::size_t drafts_bytes(const EvalModel& model, const std::vector<Plan>& plans, int capacity);

// Throws kOutOfMemory where this machine does not have them, or one of the ranks does not: then at
// all of them. context: what was asked for.
void require_memory(const EvalModel& model, std::size_t bytes, int context);
// The same of two models at once: where both are on the host, or both on the device, its memory
// must have what both need.
void require_memory(const EvalModel& one, std::size_t bytes_of_one, const EvalModel& other,
                    std::size_t bytes_of_other, int context);

}  // namespace quantspec
