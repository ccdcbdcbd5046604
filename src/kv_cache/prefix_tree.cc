#include "kv_cache/prefix_tree.h"

#include <algorithm>
#include <set>
#include <unordered_set>
#include <utility>

#include "base/error.h"

namespace quantspec {

struct PrefixTree::Node {
  Node* parent = nullptr;                                            // null: a root
  std::string_view salt;                                             // of a root: its key in roots_
  std::vector<TokenId> tokens;                                       // C
  std::vector<PageRef> pages;                                        // C/G once it is ready
  HostPages::Copy copy;                                              // instead, on the host
  std::map<std::span<const TokenId>, Node*, TokensBefore> children;  // keys lie in their `tokens`
  int holders = 0;                                                   // paths; the producer is one
  Nodes* state = nullptr;  // the list that it is in; null: a root
  Nodes::iterator place;   // there
};

bool PrefixTree::TokensBefore::operator()(std::span<const TokenId> a,
                                          std::span<const TokenId> b) const {
  return std::ranges::lexicographical_compare(a, b);
}

PrefixTree::PrefixTree(PagePool& pool, int chunk_tokens, HostPages* host)
    : pool_(pool),
      host_(host),
      chunk_tokens_(chunk_tokens),
      pages_per_chunk_(chunk_tokens / pool.shape().page_size) {
  check(chunk_tokens > 0 && chunk_tokens % pool.shape().page_size == 0, "a chunk is whole pages");
}

PrefixTree::~PrefixTree() = default;

// --- nodes ---

PrefixTree::Node& PrefixTree::root_of(std::string_view salt) {
  const auto found = roots_.find(salt);
  if (found != roots_.end()) return *found->second;
  const auto root = roots_.emplace(salt, std::make_unique<Node>()).first;
  root->second->salt = root->first;
  return *root->second;
}

PrefixTree::Node* PrefixTree::find(const Node& parent, std::span<const TokenId> chunk) const {
  const auto found = parent.children.find(chunk);
  return found == parent.children.end() ? nullptr : found->second;
}

PrefixTree::Node& PrefixTree::make(Node& parent, std::span<const TokenId> chunk) {
  Nodes one;
  Node& node = *one.emplace_back(std::make_unique<Node>());
  node.parent = &parent;
  node.tokens.assign(chunk.begin(), chunk.end());
  node.holders = 1;
  node.state = &making_;
  node.place = one.begin();
  parent.children.emplace(node.tokens, &node);
  making_.splice(making_.end(), one);
  return node;
}

bool PrefixTree::is_making(const Node& node) const { return node.state == &making_; }
bool PrefixTree::is_on_host(const Node& node) const { return node.state == &on_host_; }

void PrefixTree::move(Node& node, Nodes& state) {
  if (node.state == nullptr) return;
  state.splice(state.end(), *node.state, node.place);
  node.state = &state;
}

void PrefixTree::hold(Node& node) {
  if (node.holders++ == 0) move(node, held_);
}

void PrefixTree::let_go(Node& node) {
  if (--node.holders > 0) return;
  move(node, idle_);
  remove_if_empty(node);
}

void PrefixTree::remove(Node& leaf) {
  Node& parent = *leaf.parent;
  parent.children.erase(leaf.tokens);
  leaf.state->erase(leaf.place);
  remove_if_empty(parent);
}

// Salts come from requests, so roots that serve none do not stay.
void PrefixTree::remove_if_empty(const Node& node) {
  if (node.parent == nullptr && node.holders == 0 && node.children.empty()) {
    roots_.erase(roots_.find(node.salt));
  }
}

// --- the tree ---

PrefixTree::Path PrefixTree::match(std::string_view salt, std::span<const TokenId> tokens) {
  Path path(*this, root_of(salt));
  const std::size_t chunk = chunk_tokens_;
  for (; tokens.size() >= chunk; tokens = tokens.subspan(chunk)) {
    Node* next = find(*path.end_, tokens.first(chunk));
    if (next == nullptr || is_making(*next) || is_on_host(*next)) break;
    path.take(*next);
  }
  return path;
}

std::size_t PrefixTree::evict(std::size_t pages) {
  const std::size_t used = pool_.used();
  while (!idle_.empty() && used - pool_.used() < pages) {
    Node& first = *idle_.front();
    if (!move_to_host(first)) remove(first);
  }
  return used - pool_.used();
}

bool PrefixTree::free_on_host(std::size_t slots) {
  if (host_->free() + count_pages(on_host_.size()) < slots) return false;
  while (host_->free() < slots) remove(*on_host_.front());
  return true;
}

void PrefixTree::clear() {
  for (Nodes* idle : {&on_host_, &idle_}) {
    while (!idle->empty()) remove(*idle->front());
  }
}

// Returns whether there was room. If not, no chunk is there, so there is none below this one.
bool PrefixTree::move_to_host(Node& node) {
  if (host_ == nullptr || !free_on_host(pages_per_chunk_)) return false;
  node.copy = host_->save(node.pages);
  node.pages.clear();
  to_host_ += pages_per_chunk_;
  move(node, on_host_);
  return true;
}

// Holds it. NOTE: held first: to make room for it, idle chunks move to the host, whose first ones
// are dropped for that.
void PrefixTree::take_from_host(Node& node) {
  hold(node);
  try {
    if (pool_.free() < pages_per_chunk_) evict(pages_per_chunk_ - pool_.free());
    std::vector<PageRef> pages;
    while (pages.size() < pages_per_chunk_) pages.push_back(pool_.allocate());
    host_->restore(node.copy, pages);
    node.pages = std::move(pages);
  } catch (...) {
    --node.holders;
    move(node, on_host_);
    throw;
  }
  node.copy = {};
  from_host_ += pages_per_chunk_;
}

PrefixTree::Statistics PrefixTree::statistics() const {
  const std::size_t chunks = held_.size() + idle_.size();
  return {.chunks = chunks,
          .pages = count_pages(chunks),
          .idle_pages = count_pages(idle_.size()),
          .host_pages = count_pages(on_host_.size()),
          .making = making_.size(),
          .paths = num_paths_,
          .hit_tokens = hit_tokens_,
          .made_tokens = made_tokens_,
          .to_host = to_host_,
          .from_host = from_host_};
}

// --- paths ---

PrefixTree::Path::Path(PrefixTree& tree, Node& root) : tree_(&tree), end_(&root) {
  tree.hold(root);
  ++tree.num_paths_;
}

PrefixTree::Path::~Path() {
  if (tree_ == nullptr) return;
  abandon();
  for (Node* node = end_; node != nullptr;) tree_->let_go(*std::exchange(node, node->parent));
  --tree_->num_paths_;
}

void PrefixTree::Path::swap(Path& other) noexcept {
  std::swap(tree_, other.tree_);
  std::swap(end_, other.end_);
  std::swap(chunks_, other.chunks_);
}

bool PrefixTree::Path::making() const { return tree_ != nullptr && tree_->is_making(*end_); }

int PrefixTree::Path::tokens() const {
  return tree_ == nullptr ? 0 : chunks_ * tree_->chunk_tokens_;
}

std::span<const PageRef> PrefixTree::Path::last_pages() const {
  if (tree_ == nullptr) return {};
  return making() ? end_->parent->pages : end_->pages;
}

std::vector<PageRef> PrefixTree::Path::pages() const {
  std::vector<const Node*> nodes;  // from the end up; those of a root or in the making have none
  for (const Node* node = end_; node != nullptr; node = node->parent) nodes.push_back(node);
  std::vector<PageRef> pages;
  if (tree_ != nullptr) pages.reserve(tree_->count_pages(chunks_));
  for (; !nodes.empty(); nodes.pop_back()) {
    pages.insert(pages.end(), nodes.back()->pages.begin(), nodes.back()->pages.end());
  }
  return pages;
}

void PrefixTree::Path::take(Node& ready) {
  if (tree_->is_on_host(ready)) {
    tree_->take_from_host(ready);
  } else {
    tree_->hold(ready);
  }
  tree_->hit_tokens_ += tree_->chunk_tokens_;
  end_ = &ready;
  ++chunks_;
}

void PrefixTree::Path::disown() {
  if (tree_ != nullptr) tree_->hit_tokens_ -= tokens();
  *this = {};
}

PrefixTree::Next PrefixTree::Path::advance(std::span<const TokenId> chunk) {
  check(tree_ != nullptr, "an empty path belongs to no tree");
  check(chunk.size() == static_cast<std::size_t>(tree_->chunk_tokens_), "a path grows by chunks");
  if (making()) {
    check(std::ranges::equal(chunk, end_->tokens), "a path makes one chunk at a time");
    return Next::kYours;
  }
  if (Node* next = tree_->find(*end_, chunk)) {
    if (tree_->is_making(*next)) return Next::kInMaking;
    take(*next);
    return Next::kReady;
  }
  end_ = &tree_->make(*end_, chunk);
  tree_->made_tokens_ += tree_->chunk_tokens_;
  return Next::kYours;
}

void PrefixTree::Path::seal(std::span<const PageRef> pages) {
  check(making(), "only a producer seals");
  check(pages.size() == tree_->pages_per_chunk_, "a chunk has C/G pages");
  end_->pages.assign(pages.begin(), pages.end());
  tree_->move(*end_, tree_->held_);
  ++chunks_;
}

void PrefixTree::Path::abandon() {
  if (making()) tree_->remove(*std::exchange(end_, end_->parent));
}

// --- integrity ---

void PrefixTree::check_integrity() const {
  std::size_t children = 0, holders = 0, chunks = 0;
  for (const auto& [salt, root] : roots_) {
    check(root->parent == nullptr && root->state == nullptr && root->salt == salt &&
              root->pages.empty(),
          "a root is a chunk, or another's root");
    check(root->holders > 0 || !root->children.empty(), "a root serves nobody");
    children += check_links(*root);
    holders += root->holders;
  }
  for (const Nodes* state : {&making_, &held_, &idle_, &on_host_}) {
    for (auto node = state->begin(); node != state->end(); ++node, ++chunks) {
      check((*node)->state == state && (*node)->place == node, "a chunk is not where it says");
      children += check_links(**node);
      check_state(**node);
    }
  }
  check(children == chunks, "a chunk is not below a root");
  check(holders == num_paths_, "a path is lost");
  check_idle_order();
  check_pages();
}

// Returns the number of chunks below it.
std::size_t PrefixTree::check_links(const Node& node) const {
  int holders = 0;
  for (const auto& [tokens, child] : node.children) {
    check(child->parent == &node, "a chunk has another parent");
    check(tokens.data() == child->tokens.data(), "a chunk is found by tokens of another");
    check(std::ssize(child->tokens) == chunk_tokens_, "a chunk has not C tokens");
    holders += child->holders;
  }
  check(holders <= node.holders, "a path holds a chunk and not the one above");
  return node.children.size();
}

void PrefixTree::check_state(const Node& node) const {
  if (is_making(node)) {
    check(node.holders == 1, "a chunk in the making has not one producer");
    check(node.children.empty() && node.pages.empty(), "a chunk in the making is attached to");
    return;
  }
  const bool idle = node.state == &idle_ || is_on_host(node);
  check((node.holders == 0) == idle, "a chunk is held and idle, or neither");
  check(node.pages.size() == (is_on_host(node) ? 0 : pages_per_chunk_), "a chunk's C/G pages");
  check(node.copy.slots() == (is_on_host(node) ? pages_per_chunk_ : 0), "a chunk's copy");
  check(!is_making(*node.parent), "a chunk in the making has a ready one below it");
  check(is_on_host(node) || !is_on_host(*node.parent), "a chunk with pages is below one without");
}

// Those on the host go before all that have pages.
void PrefixTree::check_idle_order() const {
  std::unordered_set<const Node*> before;
  for (const Nodes* idle : {&on_host_, &idle_}) {
    for (const auto& node : *idle) {
      for (const auto& [tokens, child] : node->children) {
        check(before.contains(child), "a chunk would be evicted before one below it");
      }
      before.insert(node.get());
    }
  }
}

void PrefixTree::check_pages() const {
  std::set<const std::byte*> pages;
  for (const Nodes* state : {&held_, &idle_}) {
    for (const auto& node : *state) {
      for (const PageRef& page : node->pages) pages.insert(page.planes().upper);
    }
  }
  check(pages.size() == statistics().pages, "chunks share a page");
  check(pages.size() <= pool_.used(), "a page of a chunk went back to the pool");
  check(on_host_.empty() || statistics().host_pages <= host_->used(), "a copy's slots are free");
}

}  // namespace quantspec
