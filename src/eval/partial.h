// Keeping what was measured when something ends a measurement early. Private to eval/.
#pragma once

namespace quantspec {

// Measures, then concludes from what there is by then, also where measuring threw.
template <typename Measure, typename Conclude>
void measure_and_conclude(const Measure& measure, const Conclude& conclude) {
  try {
    measure();
  } catch (...) {
    conclude();
    throw;
  }
  conclude();
}

}  // namespace quantspec
