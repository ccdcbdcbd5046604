// Where the end of a text was met before in it: a suffix automaton over tokens, which takes them
// one by one (Blumer et al., The smallest automaton recognizing the subwords of a text, 1985). Its
// states are the sets of places at which some piece of the text ends; a link leads to the state of
// the longest shorter end that was met elsewhere, too.
//
// n tokens take expected time of the order of n, whatever they are, and up to 128 n bytes. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/token.h"

namespace quantspec {

class SuffixAutomaton {
 public:
  SuffixAutomaton() { clear(); }
  // So many tokens are appended without an allocation.
  void reserve(std::size_t tokens);
  static std::size_t bytes_for(std::size_t tokens);  // that this takes
  void append(TokenId token);
  void clear();
  std::size_t size() const { return size_; }  // tokens

  // The longest end of the text that was met before: its last `length` tokens are those before
  // position `end` < size(), too. length 0: its last token is new.
  struct Match {
    int length = 0;
    int end = 0;
  };
  // Of all places the last one, or one shortly before it.
  Match match() const { return match_; }

 private:
  static constexpr int kNone = -1;
  static constexpr int kRoot = 0;

  struct State {
    int length;        // of its longest piece
    int link = kNone;  // a state
    int end = 0;       // of a place
    int first_edge = kNone;
  };
  struct Edge {
    int from;  // a state
    TokenId token;
    int to;
    int next;  // of the same state
  };

  int add_state(const State& state);
  void add_edge(int from, TokenId token, int to);
  // Where the edge of that state and token stands in slots_, or would.
  std::size_t slot(int from, TokenId token) const;
  int clone(int state, int length);
  static std::size_t most_states(std::size_t tokens) { return 2 * tokens + 2; }
  static std::size_t most_edges(std::size_t tokens) { return 3 * tokens + 2; }
  static std::size_t slots_for(std::size_t edges);
  void grow_slots(std::size_t least);

  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int> slots_;  // a hash table of edges, of a power of two; kNone: free
  int last_ = kRoot;        // the state of the whole text
  std::size_t size_ = 0;
  Match match_;
};

}  // namespace quantspec
