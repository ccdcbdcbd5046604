// Any checkpoint as one store: its matrices as codes of 8 bits, of which drafts read the upper
// four. Private to model/.
#pragma once

#include <memory>

#include "model/weight_source.h"
#include "quant/encode_row.h"

namespace quantspec {

// The same weights with their matrices in the format of `encoder`; those that are quantized
// already, and vectors, stay as they are.
std::unique_ptr<WeightSource> in_eight_bits(std::unique_ptr<WeightSource> source,
                                            const RowEncoder& encoder);

}  // namespace quantspec
