#include "backend/round_ops.h"

#include "backend/params/round.h"

namespace quantspec {

Round RoundOps::end_round(const Round* round) {
  Round result;
  end_rounds({&round, 1}, {&result, 1});
  return result;
}

}  // namespace quantspec
