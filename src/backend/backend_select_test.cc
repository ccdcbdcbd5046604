// The pages that a sparse draft reads by their scores, of every backend, the reference too, against
// a plain sort.
#include <numeric>

#include "backend/op_test_support.h"

namespace quantspec {
namespace {

constexpr int kRoom = 5;  // pages that are yet to come, in rows of PageScores

// scores: [num_kv_heads, n]; the other pages have none.
std::vector<int> selected(Backend& backend, const Floats& scores, int num_kv_heads, int num_pages,
                          int count) {
  const int num_scored = static_cast<int>(scores.size()) / num_kv_heads;
  const int max_pages = num_pages + kRoom;
  Floats rows(std::size_t(num_kv_heads) * max_pages, INFINITY);  // not of pages yet to come
  for (int h = 0; h < num_kv_heads; ++h) {
    const auto row = rows.begin() + std::ptrdiff_t{h} * max_pages;
    const auto from = scores.begin() + std::ptrdiff_t{h} * num_scored;
    std::fill(std::copy(from, from + num_scored, row), row + num_pages, std::nanf(""));
  }
  Guarded<float> in(backend, rows);
  Guarded<int> lists(backend, std::vector<int>(std::size_t(num_kv_heads) * count, -1));
  SequenceRows row{0, 1, (num_pages + 1) * 32, {}};
  row.kv.pages = {static_cast<const PagePlanes*>(nullptr) + 1, std::size_t(num_pages)};  // not read
  row.kv.first_full = num_pages * 32;
  row.kv.page_lists = {lists.data(), lists.size()};
  row.kv.page_scores = {in.data(), max_pages};
  backend.select_pages({{1, num_kv_heads, 64, 32}, {&row, 1}});
  EXPECT_TRUE(in.intact() && lists.intact());
  return lists.values();
}

// One head's list, by a plain sort: page 0, then NaN and what has no score, then by score.
std::vector<int> sorted_selection(const float* scores, int num_scored, int num_pages, int count) {
  const auto rank = [&](int page) {
    if (page == 0) return std::pair(2, 0.0f);
    return page >= num_scored || std::isnan(scores[page]) ? std::pair(1, 0.0f)
                                                          : std::pair(0, scores[page]);
  };
  std::vector<int> pages(num_pages);
  std::iota(pages.begin(), pages.end(), 0);
  std::stable_sort(pages.begin(), pages.end(), [&](int a, int b) { return rank(a) > rank(b); });
  pages.resize(count);
  std::sort(pages.begin(), pages.end());
  return pages;
}

class PageSelection : public OpTest {
 protected:
  // Every head its own scores, all counts of interest.
  void expect_sorted(const Floats& scores, int num_kv_heads, int num_pages) {
    const int num_scored = static_cast<int>(scores.size()) / num_kv_heads;
    for (const int count : {1, 2, 3, 7, 32, 33, 256, num_pages / 2, num_pages - 1}) {
      if (count < 1 || count >= num_pages) continue;
      std::vector<int> expected;
      for (int h = 0; h < num_kv_heads; ++h) {
        const std::vector<int> list =
            sorted_selection(&scores[std::size_t(h) * num_scored], num_scored, num_pages, count);
        expected.insert(expected.end(), list.begin(), list.end());
      }
      EXPECT_EQ(selected(*backend_, scores, num_kv_heads, num_pages, count), expected)
          << num_kv_heads << " kv heads, " << num_scored << " scored of " << num_pages << ", "
          << count;
    }
  }
};

constexpr int kPageCounts[] = {2, 3, 9, 32, 33, 257, 1000, 4099};

TEST_P(PageSelection, TheGreatestScoresAreChosen) {
  for (const int pages : kPageCounts) {
    for (const int kv_heads : {1, 2, 40}) {
      expect_sorted(normal_floats(std::size_t(kv_heads) * pages, pages), kv_heads, pages);
    }
  }
}

// As of masses: many are tiny or 0, and few values are left of any others.
TEST_P(PageSelection, EqualScoresGoByPage) {
  for (const int pages : kPageCounts) {
    Floats scores = normal_floats(std::size_t{3} * pages, 1);
    for (float& x : scores) x = x < 0 ? 0.0f : std::round(2 * x);
    expect_sorted(scores, 3, pages);
    expect_sorted(Floats(std::size_t{3} * pages, 0.0f), 3, pages);
    // Zeros of either sign, and what is denormal below them.
    for (std::size_t i = 0; i < scores.size(); ++i) {
      scores[i] = scores[i] == 0 ? (i % 2 == 0 ? 0.0f : -0.0f) : -0x1p-140f * scores[i];
    }
    expect_sorted(scores, 3, pages);
  }
}

TEST_P(PageSelection, PagesWithoutAScoreAreChosenFirst) {
  for (const int pages : kPageCounts) {
    for (const int scored : {1, pages / 2, pages - 2, pages - 1}) {
      if (scored < 1) continue;
      expect_sorted(normal_floats(std::size_t{2} * scored, 2), 2, pages);
    }
  }
}

TEST_P(PageSelection, NanIsGreaterThanInfinity) {
  for (const int pages : kPageCounts) {
    Floats scores = normal_floats(std::size_t{3} * pages, 3);
    const float special[] = {std::nanf(""), INFINITY, -INFINITY, -std::nanf(""), 3e38f, -3e38f};
    for (std::size_t i = 0; i < scores.size(); i += 5) scores[i] = special[i / 5 % 6];
    expect_sorted(scores, 3, pages);
    expect_sorted(Floats(scores.begin(), scores.begin() + 3 * (pages / 2 + 1)), 3, pages + 1);
    expect_sorted(Floats(std::size_t{3} * pages, std::nanf("")), 3, pages);
  }
}

QUANTSPEC_FOR_ALL_BACKENDS(PageSelection);

}  // namespace
}  // namespace quantspec
