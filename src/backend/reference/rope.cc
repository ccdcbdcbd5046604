#include "backend/reference/ops.h"

namespace quantspec::reference {

void rotate(float* head, int head_dim, const float* cos, const float* sin) {
  const int half = head_dim / 2;
  for (int c = 0; c < half; ++c) {
    const float a = head[c];
    const float b = head[c + half];
    head[c] = a * cos[c] - b * sin[c];
    head[c + half] = b * cos[c] + a * sin[c];
  }
}

}  // namespace quantspec::reference
