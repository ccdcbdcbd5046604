// What a RequestLoop keeps of prompts, to files and back: bytes as the backend has them.
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/request_loop_impl.h"

namespace quantspec {

// --- visits: work for the loop's thread, for which another waits ---

void RequestLoop::Impl::visit(std::function<void()> work) {
  if (agreement.shared()) {
    fail(ErrorKind::kInvalidRequest,
         "several ranks have parts of what is kept of a text, which goes to no file; one rank "
         "works");
  }
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

// --- chunks ---

namespace {

// Planes of a page as they lie in a file: the upper one first.
struct PageBytes {
  explicit PageBytes(const KvShape& shape)
      : upper(shape.units() * shape.upper_unit_bytes()), all(PagePool::page_bytes(shape)) {}

  std::size_t upper, all;
};

}  // namespace

std::size_t RequestLoop::Impl::chunk_bytes() const {
  return tree.pages_per_chunk() * PageBytes(shape).all;
}

void RequestLoop::Impl::download(std::span<const PageRef> pages, std::span<std::byte> to) {
  DeviceMemory& memory = model.backend();
  const PageBytes page(shape);
  for (const PageRef& one : pages) {
    memory.download(to.data(), one.planes().upper, page.upper);
    memory.download(to.data() + page.upper, one.planes().lower, page.all - page.upper);
    to = to.subspan(page.all);
  }
}

// Of a chunk, from these bytes; none: there is no room for them.
std::vector<PageRef> RequestLoop::Impl::make_pages(std::span<const std::byte> bytes) {
  DeviceMemory& memory = model.backend();
  const PageBytes page(shape);
  std::vector<PageRef> pages;
  try {
    make_room(tree.pages_per_chunk());
    while (pages.size() < tree.pages_per_chunk()) pages.push_back(pool.allocate());
  } catch (const Error&) {
    return {};
  }
  for (const PageRef& one : pages) {
    memory.upload(one.planes().upper, bytes.data(), page.upper);
    memory.upload(one.planes().lower, bytes.data() + page.upper, page.all - page.upper);
    bytes = bytes.subspan(page.all);
  }
  return pages;
}

// --- the folder ---

// Whether the chunk that its path makes is there: then it is ready. `end`: of it.
bool RequestLoop::Impl::is_in_folder(Live& request, int end) {
  if (!options.folder) return false;
  const Request& wanted = request.request;
  const auto tokens = std::span<const TokenId>(wanted.prompt).first(end);
  const auto found = options.folder->chunk(wanted.salt, tokens, chunk_bytes());
  if (!found) return false;
  const std::vector<PageRef> pages = make_pages(found->bytes);
  if (pages.empty()) return false;
  request.path.seal(pages);
  return true;
}

// The last chunk of its path. What was read goes on without: it is computed.
void RequestLoop::Impl::keep_chunk(const Live& request) {
  const Request& wanted = request.request;
  if (!options.folder || !wanted.to_folder) return;
  try {
    const auto tokens = std::span<const TokenId>(wanted.prompt).first(request.path.tokens());
    options.folder->keep_chunk(wanted.salt, tokens, chunk_bytes(), [&](std::span<std::byte> to) {
      download(request.path.last_pages(), to);
    });
  } catch (...) {
    log_caught("the cache on disk");
  }
}

// Files have tails with all of the ring.
void RequestLoop::Impl::keep_tail(const Live& request, const PromptTail& tail) {
  if (!options.folder || !request.request.to_folder || !tail.has_all_of_ring()) return;
  try {
    options.folder->keep_tail(tail.salt(), tail.tokens(), tail.start(), tail.bytes(),
                              [&](std::span<std::byte> to) { tail.download(to); });
  } catch (...) {
    log_caught("the cache on disk");
  }
}

// It is with the others then.
void RequestLoop::Impl::find_tail_in_folder(const Live& request) {
  const Request& wanted = request.request;
  const auto text = std::span<const TokenId>(wanted.prompt).first(wanted.prompt.size() - 1);
  const auto known = tails.find(wanted.salt, text);
  const auto found = options.folder->tail(wanted.salt, text, known.tail ? known.end : 0);
  if (!found) return;
  const auto made = tails.begin(wanted.salt, text.first(found->file.info().tail_tokens), 0);
  if (!made || made->bytes() != found->bytes.size()) return;
  made->upload(found->bytes);
  tails.add(made);
}

// --- what files of texts have ---

void RequestLoop::read_prefix(std::string_view salt, std::span<const TokenId> tokens,
                              const std::function<void(const KeptPrefix&)>& begin,
                              const std::function<void(std::span<const std::byte>)>& part) {
  Impl& at = *impl_;
  at.visit([&] {
    const auto found = at.tails.find(salt, tokens);
    PrefixTree::Path path = at.tree.match(salt, tokens);
    const std::vector<PageRef> pages = path.pages();
    const bool has_tail = found.tail && found.end == found.tail->end() &&
                          found.tail->has_all_of_ring() && path.tokens() >= found.tail->start();
    const std::size_t each = at.tree.pages_per_chunk();
    KeptPrefix kept{pages.size() / each, at.chunk_bytes()};
    if (has_tail) {
      kept.tail_tokens = static_cast<std::uint64_t>(found.end);
      kept.tail_bytes = found.tail->bytes();
    }
    path.disown();  // nothing was found for a prompt
    begin(kept);
    std::vector<std::byte> bytes(kept.chunk_bytes);
    for (std::size_t i = 0; i < kept.chunks; ++i) {
      at.download(std::span(pages).subspan(i * each, each), bytes);
      part(bytes);
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
  const std::size_t size = at.chunk();
  if ((kept.chunks > 0 && kept.chunk_bytes != at.chunk_bytes()) ||
      kept.chunks > tokens.size() / size || kept.tail_tokens > tokens.size()) {
    fail(ErrorKind::kCorruptFile, "what was kept of {} tokens is not of this engine",
         tokens.size());
  }
  if (!at.options.share_prefixes) return;
  at.visit([&] {
    PrefixTree::Path path = at.tree.match(salt, {});
    for (std::uint64_t i = 0; i < kept.chunks; ++i) {
      const auto next = path.advance(tokens.subspan(i * size, size));
      if (next == PrefixTree::Next::kReady) continue;
      if (next == PrefixTree::Next::kInMaking) return;
      const std::vector<PageRef> pages = at.make_pages(chunk(i));
      if (pages.empty()) return;  // the rest is read again
      path.seal(pages);
    }
    if (kept.tail_tokens == 0) return;
    const std::shared_ptr<PromptTail> made =
        at.tails.begin(salt, tokens.first(kept.tail_tokens), 0);
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
