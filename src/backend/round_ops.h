// Rounds of lanes (params/round.h; section 4 of docs/design.md): drafts, one verification and the
// verdict of any number of sequences, without the host between them.
#pragma once

#include <functional>
#include <span>

#include "backend/params/forward.h"

namespace quantspec {

class RoundOps {
 public:
  virtual ~RoundOps() = default;

  // So many lanes, or rows, of a round are to be taken to so many, the others empty: so that few
  // shapes come up where those are repeated. The number itself: any shape is as good.
  virtual int padded(int count) const = 0;
  // Whether run_round() repeats ops: those it is given then take all lanes of a batch, also where
  // they have no rows.
  virtual bool repeats_rounds() const = 0;
  // These are the lanes that ops of rounds name by index, until the next call.
  virtual void begin_batch(std::span<const RoundLane> lanes) = 0;
  // What the batch's lanes read, by layer: views(lane, verifies), asked for where the lane's key is
  // not what it was bound to last.
  using LaneViews = std::function<std::span<const KvView>(int lane, bool verifies)>;
  virtual void bind_lanes(const KvShape& shape, std::span<const LaneKey> keys,
                          const LaneViews& views) = 0;
  virtual void propose(const ProposeParams& params) = 0;
  virtual void judge(const JudgeParams& params) = 0;
  // Issues a round's ops by calling `issue`, or, where ops were issued under the same key for a
  // batch of the same shape before, repeats them without a call. Returns whether it called; it may
  // call twice, the second time to record the ops.
  // REQUIRES: under equal keys, `issue` gives the same ops and memory for batches of equal shapes.
  virtual bool run_round(const RoundKey& key, const std::function<void()>& issue) = 0;
  // Waits for what was called, and gives rounds as they stand, results[i] that of rounds[i]. Throws
  // kCorruptFile where logits of one were not numbers that one can choose by (some backends:
  // already where they choose).
  virtual void end_rounds(std::span<const Round* const> rounds, std::span<Round> results) = 0;
  Round end_round(const Round* round);  // one alone

  // When what was called before was done; seconds_between() is for marks before end_rounds().
  virtual void mark(Mark mark) = 0;
  virtual double seconds_between(Mark from, Mark to) = 0;

  // What holds all sequences up, and a warm engine does no more: how often memory of a device was
  // allocated; of rounds that can be repeated, how many were captured, and ran as they were issued.
  // Of the host: none.
  struct Counts {
    std::int64_t allocations = 0;
    std::int64_t captures = 0;
    std::int64_t issues = 0;
  };
  virtual Counts counts() const = 0;
};

}  // namespace quantspec
