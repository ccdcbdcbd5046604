// What loops of ranks that share a model keep of texts: files are those of one rank, to the byte,
// and any number of ranks goes on with them. What goes wrong with a file at the rank that has it
// ends nothing else.
#include <gtest/gtest.h>

#include <future>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "base/expect_error.h"
#include "base/test_folder.h"
#include "engine/chunk_folder.h"
#include "engine/request_loop.h"
#include "tests/kept_file.h"
#include "tests/output_support.h"
#include "tests/ranks_support.h"

namespace quantspec::testing {
namespace {

using Tokens = std::vector<TokenId>;

const WeightFormat kFormat = dense_format(DType::kBF16);

Tokens text(int count, int seed = 1) {
  Tokens tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = (i * i + 7 * i * seed + seed) % 90;
  return tokens;
}

struct Options {
  std::shared_ptr<ChunkFolder> folder = {};
  std::size_t pages = 0;
  int context_ranks = 1;
};

// A loop of so many ranks, in threads, as whoever is at the first sees it.
class Ranks {
 public:
  explicit Ranks(int count, const Options& options = {}) : ranks_(count) {
    std::promise<RequestLoop*> ready;
    for (int rank = 0; rank < count; ++rank) {
      threads_.emplace_back([this, rank, count, options, &ready] {
        const auto run = [&](Communicator* all) {
          OwnModel own({kFormat, options.context_ranks}, all);
          RequestLoopOptions wanted{.sequences = 2, .context = kContext, .chunk = kChunk};
          wanted.pages = options.pages;
          wanted.tail_bytes = std::size_t{1} << 20;
          wanted.timing_seconds = 0;
          if (rank == 0) wanted.folder = options.folder;
          wanted.ranks = all;
          RequestLoop loop(own.model, own.pool.shape(), std::move(wanted));
          if (rank == 0) ready.set_value(&loop);
          loop.run();
          if (!loop.broken()) loop.check_integrity();
          if (rank == 0) done_.get_future().wait();
        };
        if (count == 1) return run(nullptr);
        as_rank(ranks_, rank, [&](Communicator& all) {
          if (rank == 0) own_ = &all;
          run(&all);
        });
      });
    }
    loop_ = ready.get_future().get();
  }
  ~Ranks() {
    loop_->stop();
    done_.set_value();
  }

  RequestLoop& loop() { return *loop_; }
  Communicator& own() { return *own_; }

  struct Answer {
    Output output = {};
    Request::Ended end = {};
  };
  Answer ask(Request request) {
    std::promise<void> ended;
    Answer answer;
    request.on_tokens = [&](const Step& step) { return answer.output.add(step), true; };
    request.on_end = [&](const Request::Ended& end) {
      answer.end = end;
      ended.set_value();
    };
    loop_->submit(std::move(request));
    ended.get_future().wait();
    return answer;
  }

 private:
  SharedRanks ranks_;
  RequestLoop* loop_ = nullptr;
  Communicator* own_ = nullptr;
  std::promise<void> done_;
  std::vector<std::jthread> threads_;
};

Request request_of(Tokens prompt) {
  return {.prompt = std::move(prompt), .predict = 12, .log_probs = true};
}

Output alone_at_one_rank(const Request& request) {
  static OwnModel one({kFormat}, nullptr);
  return alone(one, request, kContext, kChunk);
}

constexpr int kTail = 32;  // of the last chunk
const Tokens kText = text(3 * kChunk + kTail + 5);
constexpr int kKept = 3 * kChunk + kTail;

KeptFile file_of(int ranks, int context_ranks = 1) {
  Ranks of(ranks, {.context_ranks = context_ranks});
  of.ask(request_of(kText));
  return read_file_of(of.loop(), kText);
}

// How a text goes on behind what a file has of it.
void expect_goes_on(Ranks& ranks, int cached) {
  Tokens more = kText;
  for (const TokenId token : text(20, 3)) more.push_back(token);
  const Request request = request_of(more);
  const auto [output, end] = ranks.ask(request);
  EXPECT_EQ(end.end, RequestEnd::kDone);
  EXPECT_EQ(end.cached_tokens, cached);
  const Output expected = alone_at_one_rank(request);
  EXPECT_EQ(output.tokens, expected.tokens);
  EXPECT_EQ(output.log_probs, expected.log_probs);
}

// Ranks, and how many of them share each context; there are 4 kv heads.
constexpr std::pair<int, int> kShared[] = {{1, 1}, {2, 1}, {4, 1}, {2, 2}, {4, 2}, {4, 4}, {8, 2}};

TEST(RanksKeep, FilesOfOneRankToTheByteAndGoOnWithThem) {
  const KeptFile one = file_of(1);
  EXPECT_EQ(one.kept.chunks, 3u);
  EXPECT_EQ(one.kept.tail_tokens, static_cast<std::uint64_t>(kKept));
  for (const auto& [count, sharing] : kShared) {
    const KeptFile file = file_of(count, sharing);
    EXPECT_EQ(file.kept.chunk_bytes, one.kept.chunk_bytes);
    EXPECT_EQ(file.kept.tail_bytes, one.kept.tail_bytes);
    EXPECT_TRUE(file.parts == one.parts) << count << " ranks, " << sharing << " a context";
    Ranks ranks(count, {.context_ranks = sharing});
    write_file_of(ranks.loop(), kText, one);
    EXPECT_TRUE(read_file_of(ranks.loop(), kText).parts == one.parts) << count << " ranks";
    expect_goes_on(ranks, kKept);
  }
}

TEST(RanksKeep, TheSameFilesInAFolder) {
  using Sharing = std::pair<int, int>;
  const std::pair<Sharing, Sharing> cases[] = {
      {{1, 1}, {4, 1}}, {{2, 1}, {1, 1}}, {{4, 1}, {2, 1}}, {{4, 2}, {2, 1}}, {{1, 1}, {2, 2}}};
  for (const auto& [writer, reader] : cases) {
    const TestFolder place;
    const auto folder = [&] {
      return std::make_shared<ChunkFolder>(
          ChunkFolder::Options{place.path(), 1 << 30, "b", kChunk});
    };
    {
      Ranks ranks(writer.first, {folder(), 0, writer.second});
      ranks.ask(request_of(kText));
    }
    const auto found = folder();
    Ranks ranks(reader.first, {found, 0, reader.second});
    expect_goes_on(ranks, kKept);
    EXPECT_EQ(found->counts().found, 4u)
        << writer.first << " and " << reader.first;  // chunks and the tail
  }
}

// One that does not want its bytes, and one whose files are damaged: the ranks go on alike.
TEST(RanksKeep, GoOnWhereAFolderHasNothing) {
  const TestFolder place;
  const auto folder = std::make_shared<ChunkFolder>(
      ChunkFolder::Options{place.path(), 1 << 30, "b", kChunk, /*most_waiting=*/1});
  {
    Ranks ranks(2, {folder});
    ranks.ask(request_of(kText));
    EXPECT_EQ(ranks.ask(request_of(kText)).output.tokens,
              alone_at_one_rank(request_of(kText)).tokens);
    EXPECT_EQ(folder->counts().dropped, 4u);
  }
  {
    Ranks ranks(
        2,
        {std::make_shared<ChunkFolder>(ChunkFolder::Options{place.path(), 1 << 30, "b", kChunk})});
    ranks.ask(request_of(kText));
  }
  for (const auto& one : std::filesystem::recursive_directory_iterator(place.path())) {
    if (one.is_regular_file()) std::filesystem::resize_file(one.path(), one.file_size() - 1);
  }
  Ranks ranks(
      2, {std::make_shared<ChunkFolder>(ChunkFolder::Options{place.path(), 1 << 30, "b", kChunk})});
  expect_goes_on(ranks, 0);
}

TEST(RanksKeep, GoOnWithoutWhatPagesHaveNoRoomFor) {
  const KeptFile one = file_of(1);
  Ranks ranks(2, {.folder = {}, .pages = kContext / kPage});
  ranks.ask(request_of(text(kContext - 40, 5)));
  Tokens other = kText;
  for (int i = 0; i < 4; ++i) {  // more than there is room for
    other[0] = 91 + i;
    write_file_of(ranks.loop(), other, one);
  }
  const Request request = request_of(text(90, 6));
  EXPECT_EQ(ranks.ask(request).output.tokens, alone_at_one_rank(request).tokens);
}

// Whoever writes or reads a file may fail at each part of it: he hears of it, and nobody else.
TEST(RanksKeep, GoOnWhereAVisitorFails) {
  Ranks ranks(2);
  ranks.ask(request_of(kText));
  const KeptFile file = read_file_of(ranks.loop(), kText);
  for (int part = -1; part < 4; ++part) {
    int at = -1;
    const auto step = [&] {
      if (at++ == part) throw std::runtime_error("the disk is full");
    };
    EXPECT_THROW(ranks.loop().read_prefix(
                     "", kText, [&](const auto&) { step(); }, [&](auto) { step(); }),
                 std::runtime_error)
        << part;
  }
  KeptFile other = file;
  const Tokens another = text(kText.size(), 9);
  for (std::uint64_t part = 0; part < 4; ++part) {
    const auto step = [&](std::uint64_t i) {
      if (i == part) throw std::runtime_error("the file is damaged");
      return std::span<const std::byte>(file.parts[i]);
    };
    const auto write = [&](const Tokens& tokens) {
      ranks.loop().write_prefix("", tokens, file.kept, step, [&] { return step(3); });
    };
    EXPECT_THROW(write(another), std::runtime_error) << part;
  }
  other.kept.tail_bytes += 1;
  expect_error(ErrorKind::kCorruptFile, {"not of this engine"},
               [&] { write_file_of(ranks.loop(), text(kText.size(), 10), other); });
  expect_goes_on(ranks, kKept);
}

// A rank that fails meanwhile ends the visit as well, and those that wait or come later.
TEST(RanksKeep, AVisitEndsWithTheRanks) {
  Ranks ranks(2);
  ranks.ask(request_of(kText));
  const auto read = [&](const std::function<void()>& f) {
    ranks.loop().read_prefix(
        "", kText, [&](const auto&) { f(); }, [](auto) {});
  };
  std::future<void> waits;
  expect_error(ErrorKind::kDevice, {"it is over"}, [&] {
    read([&] {
      waits = std::async(std::launch::async, [&] { read([] {}); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ranks.own().give_up("it is over");
    });
  });
  expect_error(ErrorKind::kDevice, {"it is over"}, [&] { waits.get(); });
  expect_error(ErrorKind::kDevice, {"it is over"}, [&] { read([] {}); });
}

}  // namespace
}  // namespace quantspec::testing
