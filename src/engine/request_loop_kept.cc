// What a RequestLoop keeps of prompts, to files and back: bytes as the backend has them.
#include <utility>

#include "base/error.h"
#include "engine/request_loop_impl.h"

namespace quantspec {

// --- visits: work for the loop's thread, for which another waits ---

void RequestLoop::Impl::visit(std::function<void()> work) {
  std::future<void> done;
  {
    const std::lock_guard lock(inbox_mutex);
    if (stopped) fail(ErrorKind::kInvalidRequest, "the engine ends, and keeps nothing");
    done = visits.emplace_back(std::move(work)).get_future();
  }
  inbox_changed.notify_one();
  done.get();
}

bool RequestLoop::Impl::receive_visits() {
  std::deque<std::packaged_task<void()>> waiting;
  {
    const std::lock_guard lock(inbox_mutex);
    waiting.swap(visits);
  }
  for (auto& visit : waiting) visit();  // what it throws is its visitor's
  return !waiting.empty();
}

// --- chunks and tails ---

namespace {

// Planes of a page as they lie in a file: the upper one first.
struct PageBytes {
  explicit PageBytes(const KvShape& shape)
      : upper(shape.units() * shape.upper_unit_bytes()), all(PagePool::page_bytes(shape)) {}

  std::size_t upper, all;
};

}  // namespace

void RequestLoop::read_prefix(std::string_view salt, std::span<const TokenId> tokens,
                              const std::function<void(const KeptPrefix&)>& begin,
                              const std::function<void(std::span<const std::byte>)>& part) {
  Impl& at = *impl_;
  at.visit([&] {
    DeviceMemory& memory = at.model.backend();
    const PageBytes page(at.shape);
    const auto found = at.tails.find(salt, tokens);
    PrefixTree::Path path = at.tree.match(salt, tokens);
    const std::vector<PageRef> pages = path.pages();
    const bool has_tail =
        found.tail && found.end == found.tail->end() && path.tokens() >= found.tail->start();
    const std::size_t each = at.tree.pages_per_chunk();
    KeptPrefix kept{pages.size() / each, each * page.all};
    if (has_tail) {
      kept.tail_tokens = static_cast<std::uint64_t>(found.end);
      kept.tail_bytes = found.tail->bytes();
    }
    path.disown();  // nothing was found for a prompt
    begin(kept);
    std::vector<std::byte> bytes(kept.chunk_bytes);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      std::byte* const to = bytes.data() + i % each * page.all;
      memory.download(to, pages[i].planes().upper, page.upper);
      memory.download(to + page.upper, pages[i].planes().lower, page.all - page.upper);
      if (i % each + 1 == each) part(bytes);
    }
    if (!has_tail) return;
    bytes.resize(kept.tail_bytes);
    found.tail->download(bytes);
    part(bytes);
  });
}

void RequestLoop::write_prefix(
    std::string_view salt, std::span<const TokenId> tokens, const KeptPrefix& kept,
    const std::function<std::span<const std::byte>(std::uint64_t)>& chunk,
    const std::function<std::span<const std::byte>()>& tail) {
  Impl& at = *impl_;
  const PageBytes page(at.shape);
  const std::size_t each = at.tree.pages_per_chunk();
  const std::size_t size = at.chunk();
  if ((kept.chunks > 0 && kept.chunk_bytes != each * page.all) ||
      kept.chunks > tokens.size() / size || kept.tail_tokens > tokens.size()) {
    fail(ErrorKind::kCorruptFile, "what was kept of {} tokens is not of this engine",
         tokens.size());
  }
  if (!at.options.share_prefixes) return;
  at.visit([&] {
    DeviceMemory& memory = at.model.backend();
    PrefixTree::Path path = at.tree.match(salt, {});
    for (std::uint64_t i = 0; i < kept.chunks; ++i) {
      const auto next = path.advance(tokens.subspan(i * size, size));
      if (next == PrefixTree::Next::kReady) continue;
      if (next == PrefixTree::Next::kInMaking) return;
      const std::span<const std::byte> bytes = chunk(i);
      std::vector<PageRef> pages;
      try {
        at.make_room(each);
        while (pages.size() < each) pages.push_back(at.pool.allocate());
      } catch (const Error&) {
        return;  // the rest is read again
      }
      for (std::size_t p = 0; p < each; ++p) {
        const std::byte* const from = bytes.data() + p * page.all;
        memory.upload(pages[p].planes().upper, from, page.upper);
        memory.upload(pages[p].planes().lower, from + page.upper, page.all - page.upper);
      }
      path.seal(pages);
    }
    if (kept.tail_tokens == 0) return;
    const std::shared_ptr<PromptTail> made = at.tails.begin(salt, tokens.first(kept.tail_tokens));
    if (!made) return;
    if (made->bytes() != kept.tail_bytes) {
      fail(ErrorKind::kCorruptFile, "the tail of {} tokens is not of this engine",
           kept.tail_tokens);
    }
    made->upload(tail());
    at.tails.add(made);
  });
}

}  // namespace quantspec
