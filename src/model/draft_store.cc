#include "model/draft_store.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/json.h"
#include "base/shown.h"
#include "model/json_fields.h"

namespace quantspec {

namespace {

static_assert(std::endian::native == std::endian::little);

// The file: magic [8], checksum of everything after it [8], length of the header [8], header
// (JSON), then the matrices, each from a multiple of kAlignment on, zeros between.
constexpr std::string_view kMagic = "QSDRAFT";  // and the version, one character
constexpr char kVersion = '1';
constexpr std::size_t kChecksumOffset = 8;
constexpr std::size_t kCheckedFrom = 16;
constexpr std::size_t kHeaderOffset = 24;
constexpr std::size_t kAlignment = 64;
constexpr int kMaxSize = 1 << 24;              // of a matrix in either direction
constexpr std::size_t kMaxMatrices = 1 << 16;  // twice what a model of the most layers has
constexpr std::uint8_t kMiddleOfCell = 8;

constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Bytes of a row in the parts of a matrix, which follow each other, each of all rows: scales
// [format.blocks()], in two levels sub-scales and sub-offsets [groups] each, nibbles [(cols + 1) /
// 2]. No product of hostile sizes overflows.
struct Parts {
  Parts(const WeightFormat& format, int rows, int cols, bool has_lower)
      : rows(static_cast<std::size_t>(rows)),
        scales(sizeof(GroupScale) * format.blocks(cols)),
        subs(format.two_levels() ? static_cast<std::size_t>(format.groups(cols)) : 0),
        plane((static_cast<std::size_t>(cols) + 1) / 2),
        planes(has_lower ? 2 : 1) {}

  // Where the parts begin.
  std::size_t sub_scales() const { return rows * scales; }
  std::size_t sub_offsets() const { return sub_scales() + rows * subs; }
  std::size_t upper() const { return sub_offsets() + rows * subs; }
  std::size_t lower() const { return upper() + rows * plane; }
  std::size_t total() const { return upper() + rows * plane * planes; }

  std::size_t rows;
  std::size_t scales;
  std::size_t subs;
  std::size_t plane;
  std::size_t planes;
};

// Gives every matrix its place, the first one at `offset`; returns the end of the last.
std::size_t place(std::vector<StoredMatrix>& matrices, int group, std::size_t offset) {
  std::size_t end = offset;
  for (StoredMatrix& m : matrices) {
    m.offset = aligned(end);
    end = m.offset + Parts(sliced_format(group), m.rows, m.cols, m.has_lower).total();
  }
  return end;
}

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t read_u64(std::span<const std::byte> file, std::size_t offset) {
  std::uint64_t value;
  std::memcpy(&value, file.data() + offset, sizeof(value));
  return value;
}

// --- header --------------------------------------------------------------------------------------

std::string header_text(const DraftStoreInfo& info, const std::vector<StoredMatrix>& matrices) {
  Json list = Json::array();
  for (const StoredMatrix& m : matrices) {
    list.push_back({{"name", m.name},
                    {"rows", m.rows},
                    {"cols", m.cols},
                    {"lower", m.has_lower},
                    {"offset", m.offset}});
  }
  return Json{{"method", info.method},
              {"calibration", info.calibration},
              {"calibration_tokens", info.calibration_tokens},
              {"group", info.group},
              {"checkpoint", hex(info.checkpoint)},
              {"matrices", std::move(list)}}
      .dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string required_string(const Fields& fields, std::string_view key) {
  const std::string* text = fields.find_string(key);
  if (text == nullptr) fields.corrupt(key, "a string");
  return *text;
}

DraftStoreInfo parse_info(const Fields& fields) {
  DraftStoreInfo info;
  info.method = required_string(fields, "method");
  info.calibration = required_string(fields, "calibration");
  info.calibration_tokens =
      fields.integer("calibration_tokens", 0, std::numeric_limits<int>::max());
  info.group = fields.integer("group", 1, kMaxSize);
  if (info.group != kFineGroup && info.group != 64 && info.group != 128) {
    fields.corrupt("group", "32, 64 or 128");
  }
  const std::string hash = required_string(fields, "checkpoint");
  const auto [end, error] =
      std::from_chars(hash.data(), hash.data() + hash.size(), info.checkpoint, 16);
  if (error != std::errc() || end != hash.data() + hash.size()) {
    fields.corrupt("checkpoint", "a hash of 16 hexadecimal digits");
  }
  return info;
}

std::vector<StoredMatrix> parse_matrices(const Fields& fields) {
  const Json* list = fields.find("matrices");
  if (list == nullptr || !list->is_array() || list->size() > kMaxMatrices) {
    fields.corrupt("matrices", fmt::format("a list of up to {}", kMaxMatrices));
  }
  std::vector<StoredMatrix> matrices;
  for (const Json& json : *list) {
    const Fields entry(json, fmt::format("{}: matrix {}", fields.where(), matrices.size()));
    matrices.push_back({.name = required_string(entry, "name"),
                        .rows = entry.integer("rows", 1, kMaxSize),
                        .cols = entry.integer("cols", 1, kMaxSize),
                        .has_lower = entry.flag("lower", false)});
    const Json* offset = entry.find("offset");
    if (offset == nullptr || !offset->is_number_unsigned()) entry.corrupt("offset", "an integer");
    matrices.back().offset = offset->get<std::size_t>();
  }
  return matrices;
}

// Everything but the header's meaning. Returns the header.
std::string_view check_file(std::span<const std::byte> file, const std::string& where) {
  const char* text = reinterpret_cast<const char*>(file.data());
  if (file.size() < kHeaderOffset || std::string_view(text, kMagic.size()) != kMagic) {
    fail(ErrorKind::kCorruptFile, "{}: not a store of draft weights (made by quantspec prepare)",
         where);
  }
  if (text[kMagic.size()] != kVersion) {
    fail(ErrorKind::kCorruptFile,
         "{}: a store of another version than {}, which this program reads; make it again", where,
         kVersion);
  }
  const std::uint64_t length = read_u64(file, kCheckedFrom);
  const bool is_whole = length <= file.size() - kHeaderOffset;
  if (!is_whole || hash_bytes(file.subspan(kCheckedFrom)) != read_u64(file, kChecksumOffset)) {
    fail(ErrorKind::kCorruptFile, "{}: damaged or truncated: its checksum is wrong; make it again",
         where);
  }
  return {text + kHeaderOffset, static_cast<std::size_t>(length)};
}

// --- nibbles -------------------------------------------------------------------------------------

// One nibble of each code, two to a byte, low nibble = even input; a row starts on a byte.
void pack(std::span<const std::uint8_t> codes, int shift, std::byte* out) {
  for (std::size_t i = 0; i < codes.size(); ++i) {
    out[i / 2] |= std::byte((codes[i] >> shift & 15) << (i % 2 == 0 ? 0 : 4));
  }
}

int nibble(const std::byte* row, int i) {
  return std::to_integer<int>(row[i / 2]) >> (i % 2 == 0 ? 0 : 4) & 15;
}

}  // namespace

// --- reading -------------------------------------------------------------------------------------

DraftStore::DraftStore(const std::filesystem::path& path) : file_(path) {
  file_.while_unchanged([&] { read_header(); });
}

void DraftStore::read_header() {
  const std::string where = path().string();
  const std::string_view header = check_file(file_.bytes(), where);
  const Json json = parse_json(header, where);
  const Fields fields(json, where);
  info_ = parse_info(fields);
  matrices_ = parse_matrices(fields);
  std::vector<StoredMatrix> expected = matrices_;
  const std::size_t end = place(expected, info_.group, kHeaderOffset + header.size());
  const std::size_t size = file_.bytes().size();
  const auto is_in_place = [size](const StoredMatrix& a, const StoredMatrix& b) {
    return a.offset == b.offset && a.offset <= size;  // so that no sum of hostile sizes overflows
  };
  if (end != size ||
      !std::equal(expected.begin(), expected.end(), matrices_.begin(), is_in_place)) {
    fail(ErrorKind::kCorruptFile, "{}: the matrices do not lie where its header says", where);
  }
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    if (by_name_.emplace(matrices_[i].name, i).second) continue;
    fail(ErrorKind::kCorruptFile, "{}: has two matrices {}", where, shown(matrices_[i].name));
  }
}

const StoredMatrix* DraftStore::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &matrices_[found->second];
}

void DraftStore::require_finite(const StoredMatrix& m, std::span<const GroupScale> scales) const {
  const auto is_finite = [](const GroupScale& group) {
    return std::isfinite(f16_to_f32(group.scale)) && std::isfinite(f16_to_f32(group.offset));
  };
  if (std::ranges::all_of(scales, is_finite)) return;
  require_unchanged();
  fail(ErrorKind::kCorruptFile, "{}: {} has scales that are not finite; make the store again",
       path().string(), shown(m.name));
}

void DraftStore::cut(const WeightSource& own) {
  const WeightFormat format = sliced_format(info_.group);
  const int inputs = format.block;  // of one scale
  for (StoredMatrix& m : matrices_) {
    const MatrixPart part = own.part_of(m.name, m.rows, m.cols);
    const int end = part.first_col + part.cols;
    if (part.first_col % inputs != 0 || (end != m.cols && end % inputs != 0)) {
      fail(ErrorKind::kInvalidRequest,
           "{} {}: {} inputs have a scale, and a rank has the inputs {} to {} of {}; made with "
           "groups of 64 or 128 it works",
           field::kDraftStore, path().string(), inputs, part.first_col, end, shown(m.name));
    }
    m.whole = {m.rows, m.cols, part.first_row, part.first_col};
    m.rows = part.rows;
    m.cols = part.cols;
  }
}

CodedMatrix DraftStore::read(const StoredMatrix& m) const {
  const WeightFormat format = sliced_format(info_.group);
  const auto whole = m.whole.value_or(StoredMatrix::Whole{m.rows, m.cols, 0, 0});
  const Parts parts(format, whole.rows, whole.cols, m.has_lower);
  const std::byte* data = file_.bytes().data() + m.offset;
  const auto* scales = reinterpret_cast<const GroupScale*>(data);
  const std::size_t row_scales = parts.scales / sizeof(GroupScale);
  require_finite(m, {scales, parts.rows * row_scales});
  const int own_scales = format.blocks(m.cols), first_scale = format.blocks(whole.first_col);
  const int groups = parts.subs > 0 ? format.groups(m.cols) : 0;
  const int first_group = groups > 0 ? format.groups(whole.first_col) : 0;
  const auto read_row = [=, cols = m.cols, has_lower = m.has_lower](int r, const RowCodes& out) {
    const auto row = static_cast<std::size_t>(whole.first_row + r);
    std::copy_n(scales + row * row_scales + first_scale, own_scales, out.scales);
    if (groups > 0) {
      const std::size_t first = row * parts.subs + first_group;
      std::memcpy(out.sub_scales, data + parts.sub_scales() + first, groups);
      std::memcpy(out.sub_offsets, data + parts.sub_offsets() + first, groups);
    }
    const std::byte* upper = data + parts.upper() + row * parts.plane;
    const std::byte* lower = data + parts.lower() + row * parts.plane;
    for (int i = 0; i < cols; ++i) {
      const int at = whole.first_col + i;
      const int low = has_lower ? nibble(lower, at) : kMiddleOfCell;
      out.codes[i] = static_cast<std::uint8_t>(16 * nibble(upper, at) + low);
    }
  };
  return {format, m.rows, m.cols, read_row};
}

// --- writing -------------------------------------------------------------------------------------

DraftStoreWriter::DraftStoreWriter(std::filesystem::path path, const DraftStoreInfo& info,
                                   std::vector<StoredMatrix> matrices)
    : file_(std::move(path)), group_(info.group), matrices_(std::move(matrices)) {
  // The header tells the offsets, which follow from its length.
  std::string header = header_text(info, matrices_);
  for (std::size_t length = 0; length != header.size();) {
    length = header.size();
    place(matrices_, group_, kHeaderOffset + length);
    header = header_text(info, matrices_);
  }
  const std::uint64_t checksum = 0;  // known at the end
  const std::uint64_t length = header.size();
  file_.append(std::as_bytes(std::span(kMagic)));
  file_.append(std::as_bytes(std::span(&kVersion, 1)));
  file_.append(std::as_bytes(std::span(&checksum, 1)));
  write(std::as_bytes(std::span(&length, 1)));
  write(std::as_bytes(std::span(header)));
}

void DraftStoreWriter::write(std::span<const std::byte> bytes) {
  file_.append(bytes);
  checksum_.add(bytes);
}

void DraftStoreWriter::add(const CodedMatrix& coded) {
  check(added_ < matrices_.size(), "the store has a place for each matrix");
  const StoredMatrix& m = matrices_[added_++];
  check(coded.rows == m.rows && coded.cols == m.cols && coded.format == sliced_format(group_),
        "a matrix is of the shape that the store's header says");
  const std::vector<std::byte> zeros(m.offset - file_.size());
  write(zeros);
  const Parts parts(coded.format, m.rows, m.cols, m.has_lower);
  std::vector<std::byte> bytes(parts.total());
  RowBuffer row(coded.format, m.cols);
  for (std::size_t r = 0; r < parts.rows; ++r) {
    coded.read(static_cast<int>(r), row.view());
    std::memcpy(&bytes[r * parts.scales], row.scales.data(), parts.scales);
    if (parts.subs > 0) {
      std::memcpy(&bytes[parts.sub_scales() + r * parts.subs], row.sub_scales.data(), parts.subs);
      std::memcpy(&bytes[parts.sub_offsets() + r * parts.subs], row.sub_offsets.data(), parts.subs);
    }
    pack(row.codes, 4, &bytes[parts.upper() + r * parts.plane]);
    if (m.has_lower) pack(row.codes, 0, &bytes[parts.lower() + r * parts.plane]);
  }
  write(bytes);
}

void DraftStoreWriter::finish() {
  check(added_ == matrices_.size(), "the store has all of its matrices");
  const std::uint64_t checksum = checksum_.value();
  file_.overwrite(kChecksumOffset, std::as_bytes(std::span(&checksum, 1)));
  file_.finish();
}

}  // namespace quantspec
