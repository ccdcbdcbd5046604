#include "speculative/suffix_automaton.h"

#include <algorithm>
#include <bit>
#include <random>

namespace quantspec {
namespace {

constexpr std::size_t kLeastSlots = 1024;
// Of links, along which places are told of a new one: a text of one token over and over has as many
// as it has tokens.
constexpr int kMostTold = 32;

// Nobody can choose tokens whose edges meet: the key is another one in every process. What is found
// does not depend on it. (The finalizer of MurmurHash3, twice.)
std::uint64_t hash(int from, TokenId token) {
  static const std::uint64_t secret = [] {
    std::random_device random;
    return static_cast<std::uint64_t>(random()) << 32 | random();
  }();
  const auto mix = [](std::uint64_t x) {
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDu;
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53u;
    return x ^ x >> 33;
  };
  return mix(mix(secret ^ static_cast<std::uint32_t>(from)) ^ static_cast<std::uint32_t>(token));
}

}  // namespace

void SuffixAutomaton::clear() {
  states_.clear();
  edges_.clear();
  std::ranges::fill(slots_, kNone);
  if (slots_.empty()) slots_.resize(kLeastSlots, kNone);
  states_.push_back({.length = 0});
  last_ = kRoot;
  size_ = 0;
  match_ = {};
}

// An automaton of n tokens has at most 2 n states and 3 n edges.
void SuffixAutomaton::reserve(std::size_t tokens) {
  states_.reserve(most_states(tokens));
  edges_.reserve(most_edges(tokens));
  grow_slots(edges_.capacity());
}

std::size_t SuffixAutomaton::bytes_for(std::size_t tokens) {
  const std::size_t edges = most_edges(tokens);
  return sizeof(State) * most_states(tokens) + sizeof(Edge) * edges +
         sizeof(int) * slots_for(edges);
}

// NOTE: half of the slots stay free, so that few are looked at.
std::size_t SuffixAutomaton::slots_for(std::size_t edges) {
  return std::max(kLeastSlots, std::bit_ceil(2 * edges));
}

void SuffixAutomaton::grow_slots(std::size_t edges) {
  const std::size_t wanted = slots_for(edges);
  if (wanted <= slots_.size()) return;
  slots_.assign(wanted, kNone);
  for (std::size_t i = 0; i < edges_.size(); ++i) {
    slots_[slot(edges_[i].from, edges_[i].token)] = static_cast<int>(i);
  }
}

std::size_t SuffixAutomaton::slot(int from, TokenId token) const {
  const std::size_t mask = slots_.size() - 1;
  std::size_t at = hash(from, token) & mask;
  while (slots_[at] != kNone) {
    const Edge& edge = edges_[slots_[at]];
    if (edge.from == from && edge.token == token) break;
    at = (at + 1) & mask;
  }
  return at;
}

int SuffixAutomaton::add_state(const State& state) {
  states_.push_back(state);
  return static_cast<int>(states_.size()) - 1;
}

void SuffixAutomaton::add_edge(int from, TokenId token, int to) {
  grow_slots(edges_.size() + 1);
  slots_[slot(from, token)] = static_cast<int>(edges_.size());
  edges_.push_back({from, token, to, states_[from].first_edge});
  states_[from].first_edge = static_cast<int>(edges_.size()) - 1;
}

// The state's shorter pieces become a state of their own.
int SuffixAutomaton::clone(int state, int length) {
  State shorter = states_[state];
  shorter.length = length;
  shorter.first_edge = kNone;
  const int copy = add_state(shorter);
  for (int i = states_[state].first_edge; i != kNone; i = edges_[i].next) {
    add_edge(copy, edges_[i].token, edges_[i].to);
  }
  states_[state].link = copy;
  return copy;
}

void SuffixAutomaton::append(TokenId token) {
  const int end = static_cast<int>(++size_);
  const int now = add_state({.length = states_[last_].length + 1, .end = end});
  int from = last_;
  std::size_t at = 0;
  for (; from != kNone && slots_[at = slot(from, token)] == kNone; from = states_[from].link) {
    add_edge(from, token, now);
  }
  last_ = now;
  states_[now].link = kRoot;
  if (from != kNone) {
    const int before = edges_[slots_[at]].to;
    const int length = states_[from].length + 1;
    if (states_[before].length == length) {
      states_[now].link = before;
    } else {
      const int copy = clone(before, length);
      states_[now].link = copy;
      for (; from != kNone; from = states_[from].link) {
        Edge& edge = edges_[slots_[slot(from, token)]];
        if (edge.to != before) break;
        edge.to = copy;
      }
    }
  }
  const State& met = states_[states_[now].link];
  match_ = {met.length, met.end};
  int told = 0;
  for (int state = states_[now].link; state != kRoot && told < kMostTold; ++told) {
    states_[state].end = end;
    state = states_[state].link;
  }
}

}  // namespace quantspec
