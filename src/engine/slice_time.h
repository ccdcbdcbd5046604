// The time of a slice of a prompt by what it computes (Model::Prefill::products):
//
//     seconds = overhead + rate * products
//
// fitted to the slices that ran, the latest most (exponentially weighted least squares). What a
// slice takes besides its products is what its layer's weights take to be read, or kernels to be
// launched: few rows take nearly as long as some more. Until slices of several sizes ran, that is
// taken to be nothing.
//
// Not thread-safe; deterministic. Times are in seconds.
#pragma once

namespace quantspec {

class SliceTime {
 public:
  // 0 until a slice was observed.
  double seconds(double products) const { return overhead_ + rate_ * products; }
  // products > 0. Times that are not positive and finite are ignored.
  void observe(double products, double seconds);

 private:
  double overhead_ = 0;  // >= 0
  double rate_ = 0;      // >= 0
  // Weighted sums over slices: of 1, products, seconds and what they make together.
  double count_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace quantspec
