// What a RequestLoop keeps of prompts, to files and back: bytes as the backend has them, of all
// ranks (KeptShards). Who leads has the files.
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "engine/request_bytes.h"
#include "engine/request_loop_impl.h"

namespace quantspec {

namespace {

// Planes of a page as they lie in a file: the upper one first.
struct PageBytes {
  explicit PageBytes(const KvShape& shape)
      : upper(shape.units() * shape.upper_unit_bytes()), all(shape.page_bytes()) {}

  std::size_t upper, all;
};

}  // namespace

// --- bytes of all ranks ---

KeptShards::Pages RequestLoop::Impl::own_chunk(std::size_t first_token) const {
  return {tree.pages_per_chunk() * PageBytes(shape).all, first_token / shape.page_size};
}

std::size_t RequestLoop::Impl::chunk_bytes() const { return shards.file_bytes(own_chunk(0)); }

void RequestLoop::Impl::gather(std::span<const PageRef> pages, std::size_t first_token,
                               std::span<std::byte> file) const {
  DeviceMemory& memory = model.backend();
  const PageBytes page(shape);
  const auto write = [&](std::span<std::byte> to) {
    for (const PageRef& one : pages) {
      memory.download(to.data(), one.planes().upper, page.upper);
      memory.download(to.data() + page.upper, one.planes().lower, page.all - page.upper);
      to = to.subspan(page.all);
    }
  };
  shards.gather(own_chunk(first_token), write, file);
}

void RequestLoop::Impl::gather(const PromptTail& tail, std::span<std::byte> file) const {
  const KeptShards::AllFullKv own{tail.bytes()};
  shards.gather(
      own, [&](std::span<std::byte> to) { tail.download(to); }, file);
}

void RequestLoop::Impl::scatter(std::span<const std::byte> file, PromptTail& tail) const {
  const KeptShards::AllFullKv own{tail.bytes()};
  shards.scatter(own, file, [&](std::span<const std::byte> from) { tail.upload(from); });
}

std::size_t RequestLoop::Impl::tail_bytes(const PromptTail& tail) const {
  return shards.file_bytes(KeptShards::AllFullKv{tail.bytes()});
}

// Of a chunk; none: there is no room for them.
std::vector<PageRef> RequestLoop::Impl::make_pages(std::span<const std::byte> file,
                                                   std::size_t first_token) {
  DeviceMemory& memory = model.backend();
  const PageBytes page(shape);
  std::vector<PageRef> pages;
  try {
    make_room(tree.pages_per_chunk());
    if (pool.free() < tree.pages_per_chunk()) return {};
    while (pages.size() < tree.pages_per_chunk()) pages.push_back(pool.allocate());
  } catch (const Error&) {
    rethrow_for_ranks();
    return {};
  }
  const auto read = [&](std::span<const std::byte> from) {
    for (const PageRef& one : pages) {
      memory.upload(one.planes().upper, from.data(), page.upper);
      memory.upload(one.planes().lower, from.data() + page.upper, page.all - page.upper);
      from = from.subspan(page.all);
    }
  };
  shards.scatter(own_chunk(first_token), file, read);
  return pages;
}

// --- the folder ---

// Whether the chunk that its path makes is there: then it is ready. `end`: of it.
bool RequestLoop::Impl::is_in_folder(Live& request, int end) {
  if (!has_folder) return false;
  const Request& wanted = request.request;
  std::optional<ChunkFolder::Found> found;
  if (agreement.leads()) {
    const auto tokens = std::span<const TokenId>(wanted.prompt).first(end);
    found = options.folder->chunk(wanted.salt, tokens, chunk_bytes());
  }
  if (!agreement.on(found.has_value())) return false;
  const std::vector<PageRef> pages =
      make_pages(found ? found->bytes : std::span<const std::byte>(), end - chunk());
  if (pages.empty()) return false;
  request.path.seal(pages);
  return true;
}

// in_folder() hands something to the folder, which may want its bytes, and then all ranks give
// theirs. What was read goes on without: it is computed.
void RequestLoop::Impl::keep(const std::function<void(const Fill&)>& in_folder,
                             const Fill& gather_to) {
  enum { kUnasked, kAsked, kGiven } state = kUnasked;
  if (!agreement.leads()) {
    if (agreement.on(false)) gather_to({});
    return;
  }
  try {
    in_folder([&](std::span<std::byte> file) {
      state = kAsked;
      agreement.on(true);
      gather_to(file);
      state = kGiven;
    });
  } catch (...) {
    if (state == kAsked) rethrow_for_ranks();
    log_caught("the cache on disk");
  }
  if (state == kUnasked) agreement.on(false);
}

// The last chunk of its path.
void RequestLoop::Impl::keep_chunk(const Live& request) {
  const Request& wanted = request.request;
  if (!has_folder || !wanted.to_folder) return;
  const auto in_folder = [&](const Fill& fill) {
    const auto tokens = std::span<const TokenId>(wanted.prompt).first(request.path.tokens());
    options.folder->keep_chunk(wanted.salt, tokens, chunk_bytes(), fill);
  };
  keep(in_folder, [&](std::span<std::byte> file) {
    gather(request.path.last_pages(), request.path.tokens() - chunk(), file);
  });
}

// Files have tails with all of the ring.
void RequestLoop::Impl::keep_tail(const Live& request, const PromptTail& tail) {
  if (!has_folder || !request.request.to_folder || !tail.has_all_of_ring()) return;
  const auto in_folder = [&](const Fill& fill) {
    options.folder->keep_tail(tail.salt(), tail.tokens(), tail.start(), tail_bytes(tail), fill);
  };
  keep(in_folder, [&](std::span<std::byte> file) { gather(tail, file); });
}

// It is with the others then.
void RequestLoop::Impl::find_tail_in_folder(const Live& request) {
  const Request& wanted = request.request;
  const auto text = std::span<const TokenId>(wanted.prompt).first(wanted.prompt.size() - 1);
  const auto known = tails.find(wanted.salt, text);
  std::optional<ChunkFolder::Found> found;
  if (agreement.leads()) {
    found = options.folder->tail(wanted.salt, text, known.tail ? known.end : 0);
  }
  struct Told {
    std::uint64_t tokens, bytes;
  };
  const Told told =
      agreement.on(found ? Told{found->file.info().tail_tokens, found->bytes.size()} : Told{0, 0});
  if (told.tokens == 0) return;
  const auto made = tails.begin(wanted.salt, text.first(told.tokens), 0);
  if (!made || tail_bytes(*made) != told.bytes) return;
  scatter(found ? found->bytes : std::span<const std::byte>(), *made);
  tails.add(made);
}

// --- what files of texts have ---

void RequestLoop::Impl::visit(Visit visit) {
  std::future<void> done = visit.done.get_future();
  {
    const std::lock_guard lock(inbox_mutex);
    if (broken) throw Error(*broken);
    if (stopped) fail(ErrorKind::kInvalidRequest, "the engine ends, and keeps nothing");
    visits.push_back(std::move(visit));
  }
  inbox_changed.notify_one();
  done.get();
}

std::optional<RequestLoop::Impl::Visit> RequestLoop::Impl::next_visit() {
  const std::lock_guard lock(inbox_mutex);
  if (visits.empty()) return std::nullopt;
  Visit next = std::move(visits.front());
  visits.pop_front();
  return next;
}

// Returns whether there was one.
bool RequestLoop::Impl::receive_visits() {
  bool received = false;
  for (;; received = true) {
    std::optional<Visit> visit = next_visit();
    try {
      if (!agreement.on(visit.has_value())) return received;
      if (agreement.shared()) {
        const auto text = agreement.on(visit ? bytes_of(visit->text) : std::vector<std::byte>());
        const auto found = agreement.on(visit ? visit->found : std::nullopt);
        if (!visit) visit.emplace(Visit{.text = request_of(text), .found = found});
      }
      visit->found ? write_kept(*visit) : read_kept(*visit);
    } catch (...) {
      if (visit) visit->done.set_exception(std::current_exception());
      rethrow_for_ranks();
      continue;
    }
    visit->failure ? visit->done.set_exception(visit->failure) : visit->done.set_value();
  }
}

void RequestLoop::Impl::end_visits(const Error& error) {
  while (auto visit = next_visit()) visit->done.set_exception(std::make_exception_ptr(error));
}

// What a visitor's callback throws is the visitor's, and all ranks leave off by it.
bool RequestLoop::Impl::goes_on(Visit& visit, const std::function<void()>& call) const {
  try {
    if (agreement.leads()) call();
  } catch (...) {
    visit.failure = std::current_exception();
  }
  return agreement.on(visit.failure == nullptr);
}

void RequestLoop::Impl::read_kept(Visit& visit) {
  const std::span<const TokenId> tokens = visit.text.prompt;
  const auto found = tails.find(visit.text.salt, tokens);
  PrefixTree::Path path = tree.match(visit.text.salt, tokens);
  const std::vector<PageRef> pages = path.pages();
  const bool has_tail = found.tail && found.end == found.tail->end() &&
                        found.tail->has_all_of_ring() && path.tokens() >= found.tail->start();
  const std::size_t each = tree.pages_per_chunk();
  KeptPrefix kept{pages.size() / each, chunk_bytes()};
  if (has_tail) {
    kept.tail_tokens = static_cast<std::uint64_t>(found.end);
    kept.tail_bytes = tail_bytes(*found.tail);
  }
  path.disown();  // nothing was found for a prompt
  if (!goes_on(visit, [&] { visit.begin(kept); })) return;
  std::vector<std::byte> bytes;
  if (agreement.leads()) bytes.resize(kept.chunk_bytes);
  for (std::size_t i = 0; i < kept.chunks; ++i) {
    gather(std::span(pages).subspan(i * each, each), i * chunk(), bytes);
    if (!goes_on(visit, [&] { visit.part(bytes); })) return;
  }
  if (!has_tail) return;
  if (agreement.leads()) bytes.resize(kept.tail_bytes);
  gather(*found.tail, bytes);
  goes_on(visit, [&] { visit.part(bytes); });
}

void RequestLoop::Impl::write_kept(Visit& visit) {
  const std::span<const TokenId> tokens = visit.text.prompt;
  const std::string& salt = visit.text.salt;
  const KeptPrefix& kept = *visit.found;
  const std::size_t size = chunk();
  std::span<const std::byte> bytes;
  PrefixTree::Path path = tree.match(salt, {});
  for (std::uint64_t i = 0; i < kept.chunks; ++i) {
    PrefixTree::Next next{};
    try {
      next = path.advance(tokens.subspan(i * size, size));
    } catch (const Error& error) {  // as where make_pages() finds no room
      if (error.kind() != ErrorKind::kOutOfMemory) throw;
      if (pool.free() >= tree.pages_per_chunk()) rethrow_for_ranks();
      return;
    }
    if (next == PrefixTree::Next::kReady) continue;
    if (next == PrefixTree::Next::kInMaking) return;
    if (!goes_on(visit, [&] { bytes = visit.chunk(i); })) return;
    const std::vector<PageRef> pages = make_pages(bytes, i * size);
    if (pages.empty()) return;  // the rest is read again
    path.seal(pages);
  }
  if (kept.tail_tokens == 0) return;
  const std::shared_ptr<PromptTail> made = tails.begin(salt, tokens.first(kept.tail_tokens), 0);
  if (!made) return;
  const auto read_tail = [&] {
    if (tail_bytes(*made) != kept.tail_bytes) {
      fail(ErrorKind::kCorruptFile, "the tail of {} tokens is not of this engine",
           kept.tail_tokens);
    }
    bytes = visit.tail();
  };
  if (!goes_on(visit, read_tail)) return;
  scatter(bytes, *made);
  tails.add(made);
}

void RequestLoop::read_prefix(std::string_view salt, std::span<const TokenId> tokens,
                              const std::function<void(const KeptPrefix&)>& begin,
                              const std::function<void(std::span<const std::byte>)>& part) {
  Request text{.prompt = {tokens.begin(), tokens.end()}, .salt = std::string(salt)};
  impl_->visit({.text = std::move(text), .begin = begin, .part = part});
}

void RequestLoop::write_prefix(
    std::string_view salt, std::span<const TokenId> tokens, const KeptPrefix& kept,
    const std::function<std::span<const std::byte>(std::uint64_t)>& chunk,
    const std::function<std::span<const std::byte>()>& tail) {
  Impl& at = *impl_;
  if ((kept.chunks > 0 && kept.chunk_bytes != at.chunk_bytes()) ||
      kept.chunks > tokens.size() / at.chunk() || kept.tail_tokens > tokens.size()) {
    fail(ErrorKind::kCorruptFile, "what was kept of {} tokens is not of this engine",
         tokens.size());
  }
  if (!at.options.share_prefixes) return;
  Request text{.prompt = {tokens.begin(), tokens.end()}, .salt = std::string(salt)};
  at.visit({.text = std::move(text), .found = kept, .chunk = chunk, .tail = tail});
}

}  // namespace quantspec
