// The names of what ops take, for headers that only pass it on.
#pragma once

#include <cstdint>

namespace quantspec {

enum class DType : std::uint8_t;
struct CodedMatrix;
struct KvShape;

struct Linear;
struct Matrix;
struct PlaneBytes;
struct TensorView;
struct WeightFormat;

struct FullKv;
struct KvView;
struct PagePlanes;
struct SequenceRows;

struct AddLinearParams;
struct EmbedParams;
struct GateUpParams;
struct HeadParams;
struct PassSizes;
struct PrefillSizes;
struct QkvParams;
enum class OpOrder : std::uint8_t;

struct AttentionParams;
struct PageBoundsParams;
struct PrefillAttentionParams;
struct SelectPagesParams;

enum class Mark : std::uint8_t;
struct JudgeParams;
struct LaneKey;
struct ProposeParams;
struct Round;
struct RoundKey;
struct RoundLane;
struct RoundTokens;
struct TokenRule;

}  // namespace quantspec
