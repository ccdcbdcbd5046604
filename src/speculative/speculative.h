// Self-speculative decoding: the model drafts for itself and verifies what it drafted (section 4 of
// docs/design.md; arXiv:2502.10424). Plain decoding is the same code with a draft length of 0.
//
//     reserve  room for the round's rows; a page's worth of tokens that became old is quantized
//     draft    draft_len single-token passes over the cheap view     -> proposed tokens
//     verify   one target pass over the pending token and the draft  -> draft_len + 1 rows
//     accept   the longest agreeing run, then one token from the target
//     settle   of the rows, the cache keeps those of the accepted tokens: one integer
//
// Greedy output, and output with coupled sampling, is bit-identical for every draft length; with
// rejection sampling it has the target's distribution. Not thread-safe.
//
// What rounds need is there before the first: a round allocates only where the page pool takes
// another slab, and where the backend's scratch grows with the context or with the longest round.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/params/forward.h"
#include "model/model.h"
#include "sampler/sampling_params.h"
#include "speculative/draft_lengths.h"
#include "speculative/round_stats.h"
#include "speculative/solo_drafts.h"

namespace quantspec {

struct DecodingOptions {
  SamplingParams sampling;
  SpecSampling spec_sampling = SpecSampling::kRejection;
  std::optional<int> draft_len;  // nullopt: chosen by DraftLengths; 0: plain decoding
  std::vector<Plan> plans;       // by which to draft, Plan::lookup() too; none: plain decoding
  // What the answer may copy from, beside its own text: Plan::lookup() finds drafts there, too.
  // REQUIRES: tokens of the model, and kBetweenTexts between several texts.
  static constexpr TokenId kBetweenTexts = -1;
  std::vector<TokenId> reference = {};
  // For measurements of speed on weights that mean nothing (TokenRule); negative: off.
  float simulated_acceptance = -1.0f;
  bool log_probs = false;  // of every token (Step)
  int top_log_probs = 0;   // and of so many of the likeliest at its place
  // Where those of a prompt that is read are left; outlives that.
  PromptLogProbs* prompt_log_probs = nullptr;
  LogitBiases biases = {};
};

// What a round added to a sequence.
struct Step {
  std::span<const TokenId> tokens;  // 1 .. draft_len + 1 new ones; valid until its next round
  int accepted;                     // the first so many were drafted, the last is the target's
  DraftChoice choice;               // by what they were drafted
  bool looked_up = false;           // which was Plan::lookup()
  // What was drafted after those: the target has put its own token in the first one's place. Valid
  // until the decoder's next round.
  std::span<const TokenId> rejected = {};
  // Of each token, where they are wanted: the logarithm of its probability by the target's logits,
  // before temperature, penalties and truncation.
  std::span<const float> log_probs = {};
  std::span<const TokenLogProb> top_log_probs = {};  // for each of those, top_log_probs of them
  const PromptLogProbs* prompt = nullptr;            // at its end, where they are wanted
};

// For Decoder::time_passes, before anything is asked of a model.
inline constexpr double kPassTimingSeconds = 1;

class Communicator;  // comm/comm.h
struct Lane;
class LookupDrafts;

// One sequence being decoded: its tokens and its cache. The last token is pending: chosen, but not
// yet in the cache, so cache().length() == tokens().size() - 1 between steps.
class Sequence {
 public:
  // `capacity` and `kv` as KvCache's. `model` and `pool` outlive it.
  Sequence(const Model& model, PagePool& pool, int capacity, DecodingOptions options,
           KvOptions kv = {});
  ~Sequence();
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;
  // A sequence of its own that goes on from here with other options: what the cache has in pages is
  // shared. REQUIRES: this cache supports what the options' plans read.
  Sequence fork(DecodingOptions options) const;

  const std::vector<TokenId>& tokens() const { return tokens_; }
  const KvCache& cache() const { return cache_; }
  const RoundStats& stats() const { return stats_; }
  const SoloDrafts& drafts() const { return drafts_; }
  const DecodingOptions& options() const { return options_; }
  // Tokens that can still be chosen before the context is full.
  int room() const { return cache_.capacity() - cache_.length(); }
  // The most tokens of the next round: it does not cross a page's border.
  int max_rows() const { return cache_.max_rows(); }

  void clear();
  // Replaces how the next tokens are chosen, keeping the cache; statistics start anew.
  // REQUIRES: the cache supports what the plans read (kv_options).
  void set_options(DecodingOptions options);
  // Goes on with what another sequence has measured. REQUIRES: of the same plans and draft_len.
  void adopt_drafts(const SoloDrafts& drafts) { drafts_ = drafts; }
  // On an empty sequence: the beginning of the next prompt is in these pages (KvCache::attach).
  void attach(std::span<const PageRef> pages, const PromptTail* tail = nullptr) {
    cache_.attach(pages, tail);
  }
  // Inside a prompt: the next chunk's pages are these (KvCache::share).
  void share(std::span<const PageRef> pages) { cache_.share(pages); }
  // Inside a prompt: goes on where a cache of the same text was saved (KvCache::restore).
  void restore(HostPages& host, const KvCache::Saved& saved) { cache_.restore(host, saved); }
  // Drafts for the next round, at most so many, where one of the plans looks them up; none if not.
  // Valid until tokens are added.
  FoundTokens look_up(int most);
  // Of the host's memory, that this takes where one of the plans does.
  static std::size_t lookup_bytes(int capacity, std::size_t reference);
  // Of the backend's memory, beside the cache's.
  static std::size_t bytes_for(int capacity);
  // Notes tokens that are in the cache, so that look_up() has less to do; returns whether all are.
  bool note_read();
  // Whether that is how they are drafted.
  bool looks_up(const DraftChoice& choice) const {
    return choice.draft_len > 0 && choice.plan >= 0 && options_.plans[choice.plan].looks_up();
  }
  // Forgets the tokens from `count` on, for a stop inside an accepted run.
  // REQUIRES: no more tokens are dropped than the last step added, and one remains.
  void truncate(std::size_t count);

 private:
  friend class Decoder;
  Sequence(const Sequence& other, DecodingOptions options);
  void reserve();
  SoloDrafts make_drafts() const;
  void make_lookup();
  TokenRule rule();
  void upload_biases();
  RoundTokens on_backend();
  LaneKey lane_key() const;
  // By which it drafts, or did last; null: none.
  const Plan* draft_plan() const { return plan_ < 0 ? nullptr : &options_.plans[plan_]; }
  void begin_answer();  // the tokens so far are what it answers
  // What the backend knows of the tokens and of the rule becomes what is known here.
  void begin_round();
  void begin_round(const Lane& lane);
  void propose(std::span<const TokenId> tokens);
  // What the round chose.
  Step end_round(DraftChoice choice, const Round& result);

  std::uint64_t id_;  // of LaneKey
  const Model* model_;
  std::vector<TokenId> tokens_;
  KvCache cache_;
  Buffer token_memory_;  // TokenId by position; the first known_ are those of tokens_
  Buffer round_memory_;  // Round
  Buffer rule_memory_;   // TokenRule
  Buffer bias_memory_;   // LogitBias
  std::size_t known_ = 0;
  int round_length_ = -1;  // as the backend has it
  bool rule_known_ = false;
  int prompt_length_ = 0;  // of the tokens; those behind were chosen
  Plan target_;
  DecodingOptions options_;
  int plan_ = -1;  // of options_.plans
  SoloDrafts drafts_;
  std::unique_ptr<LookupDrafts> lookup_;  // null: no plan looks up
  RoundStats stats_;
};

// What a sequence does in a round.
struct Lane {
  Sequence* sequence;
  DraftChoice choice;  // REQUIRES: draft_len < sequence->max_rows()
  // Whether the verification records the masses by which plans choose pages in later rounds.
  bool records_masses = true;
  // Instead of drafts: tokens that somebody else says come next, or that were looked up, verified
  // as drafts are, for which no pass runs (RoundLane::proposed). REQUIRES: choice.draft_len of
  // them; they are functions of tokens that were chosen before, or sampling is greedy or coupled.
  std::span<const TokenId> proposed = {};
};

// Runs rounds of any number of sequences of its model at once. What a round adds to a sequence is
// the same whatever sequences are beside it: its rows have the same bits, and it is judged alone.
class Decoder {
 public:
  using Step = quantspec::Step;

  // ranks: those that share the model, which all call the same; null: nobody. Then times are those
  // of rank 0, so that they decide the same. REQUIRES: both outlive it.
  explicit Decoder(const Model& model, Communicator* ranks = nullptr);
  ~Decoder();

  // Appends a prompt (after the pending token, if there is one) and chooses the token after it. All
  // of the text counts as a prompt: what was generated before is read again, so that the choice
  // depends on the tokens alone. If it throws (`progress` may, to cancel), the sequence is empty.
  // REQUIRES: prompt is not empty or a token is pending.
  TokenId prefill(Sequence& sequence, std::span<const TokenId> prompt,
                  const Model::Progress& progress = {});
  // The same in slices: the prompt is read by what begin_prompt() returns, which the sequence
  // outlives, and when that is done(), end_prompt() chooses the token. Between a slice that
  // finishes a prompt and its end_prompt(), no other prompt is read.
  std::unique_ptr<Model::Prefill> begin_prompt(Sequence& sequence, std::span<const TokenId> prompt);
  Step end_prompt(Sequence& sequence);
  // Instead of end_prompt(): goes on with tokens that were chosen before, the last of which is
  // pending. replay() reads some of those that are not in the cache yet, by a target pass as a
  // round's is; false: none was left.
  void resume(Sequence& sequence, std::span<const TokenId> chosen);
  bool replay(Sequence& sequence);

  // One round of every lane, no two of one sequence. If it throws, the sequences are as they were
  // before. REQUIRES: prefill was called for each.
  struct Outcome {
    std::span<const Step> steps;  // of each lane; valid until the next round
    double draft_seconds;         // all draft passes together, their sampling included
    double other_seconds;         // everything else
  };
  Outcome round(std::span<const Lane> lanes);

  // A round of one sequence, which chooses what it drafts (SoloDrafts).
  // REQUIRES: prefill was called; 1 <= max_tokens <= sequence.room().
  Step step(Sequence& sequence, int max_tokens);

  // Takes the memory that rounds of so many sequences take, but for what the backend takes for
  // itself.
  void reserve(int sequences);
  // Has the backend take that, too, and makes what rounds find by position, so that rounds of these
  // allocate nothing but for the first log-probabilities and the first replay. The sequences are
  // left as they are. REQUIRES: they are empty, and draft by the same plans.
  void warm_up(std::span<Sequence* const> sequences);
  // What decoders take of the backend's memory for rounds of so many sequences, with
  // log-probabilities.
  static std::size_t bytes_for(const ModelConfig& config, const Backend& backend, int sequences);

  // Runs rounds of an empty sequence, and leaves it empty: how long passes take by its plans, to
  // begin with (DraftLengths::set_priors). Of the first rounds of a process, which are slow, it
  // waits for the end, but no longer than most_seconds and a round. Nothing where there are no
  // plans.
  std::vector<TimedPass> time_passes(Sequence& sequence, double most_seconds);

 private:
  // What the round has of a lane of the batch; the batch's lanes are those of the round, in an
  // order in which equal plans are beside each other, and then empty ones.
  struct Row {
    Sequence* sequence = nullptr;  // null: the lane is empty
    int index = 0;                 // of the round's lane
    int target_plan = -1;
    int draft_plan = -1;  // none: nothing is drafted
  };
  // Of rounds of so many sequences: lanes, and rows of logits.
  struct MostRows {
    int lanes;
    int target, drafts;
  };
  static MostRows most_rows(const Backend& backend, int sequences);
  // Lanes of the batch that share passes, and the rows that those write.
  struct Group {
    int first;
    int count;
    int num_rows;  // of a pass, at least those of the lanes
    float* rows;
    bool keeps = false;  // drafts: each depth has rows of its own
  };
  void order(std::span<const Lane> lanes);
  void begin(std::span<const Lane> lanes);
  void make_batch(std::span<const Lane> lanes);
  void make_groups();
  void reserve_rows();
  void place_rows();
  void bind();
  void issue();
  void end(std::span<const Lane> lanes);
  void draft(const Group& group);
  void verify(const Group& group);
  RoundKey key() const;
  int contexts() const;
  int plan_number(const Plan& plan);
  void grow(Buffer& buffer, std::size_t rows);

  void reserve_log_probs(std::size_t rows, std::size_t top);
  float* kept_row(int row);  // where a copy of it goes: judging changes logits
  // Adds those of tokens that were chosen by these rows.
  void add_log_probs(const float* logits, std::span<const TokenId> tokens, int top, Step& step);
  void read_log_probs(PromptLogProbs& read, std::span<const TokenId> prompt, int top, int position,
                      int count, const float* logits);

  const Model& model_;
  Communicator* ranks_;
  Buffer target_rows_;  // [rows, vocab] logits, then probabilities
  Buffer draft_rows_;
  Buffer prompt_row_;        // [vocab] logits after a prompt
  std::uint64_t id_;         // of RoundKey
  std::vector<Plan> plans_;  // by number
  // Of the round at hand.
  std::vector<Row> rows_;
  std::vector<RoundLane> batch_;
  std::vector<LaneKey> keys_;
  std::vector<Group> draft_groups_;
  std::vector<Group> target_groups_;
  bool one_plan_ = false;      // all that draft do so by one, and are judged by one target
  bool keeps_logits_ = false;  // log-probabilities are wanted
  std::vector<RoundInput> inputs_;
  std::vector<const Round*> rounds_;
  std::vector<Round> results_;
  std::vector<Step> steps_;
  std::vector<float> replay_logits_;
  Buffer kept_rows_;  // [rows, vocab] logits
  std::vector<float> host_row_;
  std::vector<float> log_probs_;
  std::vector<TokenLogProb> top_log_probs_;
};

}  // namespace quantspec
