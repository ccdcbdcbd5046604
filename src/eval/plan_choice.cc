#include "eval/plan_choice.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace quantspec {

namespace {

constexpr double kLeastGain = 1e-12;  // nats; below it an exchange is rounding

class Chooser {
 public:
  Chooser(const std::vector<std::vector<Setting>>& parts, std::size_t budget,
          std::vector<std::size_t> start)
      : parts_(parts), budget_(budget), chosen_(std::move(start)) {
    for (std::size_t part = 0; part < parts.size(); ++part) bytes_ += current(part).bytes;
  }

  bool fits() const { return bytes_ <= budget_; }
  const std::vector<std::size_t>& chosen() const { return chosen_; }
  double kl() const {
    double kl = 0;
    for (std::size_t part = 0; part < parts_.size(); ++part) kl += current(part).kl;
    return kl;
  }

  void improve() {
    do {
      while (step()) {
      }
    } while (exchange());
  }

 private:
  // The step of one part that saves most KL per byte; false: none fits.
  bool step() {
    double best = 0;
    std::size_t best_part = 0, best_setting = 0;
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      for (std::size_t setting = 0; setting < parts_[part].size(); ++setting) {
        const double gain = saved(part, setting);
        if (gain <= kLeastGain || bytes_with(part, setting) > budget_) continue;
        const auto more = static_cast<double>(parts_[part][setting].bytes) - current(part).bytes;
        const double rate = more > 0 ? gain / more : std::numeric_limits<double>::infinity();
        if (rate <= best) continue;
        best = rate;
        best_part = part;
        best_setting = setting;
      }
    }
    if (best > 0) choose(best_part, best_setting);
    return best > 0;
  }

  // The exchange of two parts' settings that saves most KL; false: none does and fits.
  bool exchange() {
    double best = kLeastGain;
    std::size_t best_move[4] = {};
    for (std::size_t one = 0; one < parts_.size(); ++one) {
      for (std::size_t down = 0; down < parts_[one].size(); ++down) {
        if (parts_[one][down].bytes >= current(one).bytes) continue;
        const std::size_t freed = current(one).bytes - parts_[one][down].bytes;
        for (std::size_t other = 0; other < parts_.size(); ++other) {
          for (std::size_t up = 0; other != one && up < parts_[other].size(); ++up) {
            const double gain = saved(one, down) + saved(other, up);
            if (gain <= best || bytes_with(other, up) > budget_ + freed) continue;
            best = gain;
            std::ranges::copy(std::vector{one, down, other, up}, best_move);
          }
        }
      }
    }
    if (best <= kLeastGain) return false;
    choose(best_move[0], best_move[1]);
    choose(best_move[2], best_move[3]);
    return true;
  }

  const Setting& current(std::size_t part) const { return parts_[part][chosen_[part]]; }
  double saved(std::size_t part, std::size_t setting) const {
    return current(part).kl - parts_[part][setting].kl;
  }
  std::size_t bytes_with(std::size_t part, std::size_t setting) const {
    return bytes_ - current(part).bytes + parts_[part][setting].bytes;
  }
  void choose(std::size_t part, std::size_t setting) {
    bytes_ = bytes_with(part, setting);
    chosen_[part] = setting;
  }

  const std::vector<std::vector<Setting>>& parts_;
  std::size_t budget_;
  std::size_t bytes_ = 0;
  std::vector<std::size_t> chosen_;
};

std::vector<std::size_t> cheapest(const std::vector<std::vector<Setting>>& parts) {
  std::vector<std::size_t> cheapest;
  for (const std::vector<Setting>& settings : parts) {
    check(!settings.empty(), "every part has a setting");
    const auto least = std::ranges::min_element(settings, [](const Setting& a, const Setting& b) {
      return a.bytes != b.bytes ? a.bytes < b.bytes : a.kl < b.kl;
    });
    cheapest.push_back(least - settings.begin());
  }
  return cheapest;
}

}  // namespace

std::optional<std::vector<std::size_t>> choose_settings(
    const std::vector<std::vector<Setting>>& parts, std::size_t budget,
    const std::optional<std::vector<std::size_t>>& known) {
  Chooser chooser(parts, budget, cheapest(parts));
  if (!chooser.fits()) return std::nullopt;
  chooser.improve();
  if (!known) return chooser.chosen();
  Chooser other(parts, budget, *known);
  check(other.fits(), "the known settings fit");
  other.improve();
  return other.kl() < chooser.kl() ? other.chosen() : chooser.chosen();
}

}  // namespace quantspec
