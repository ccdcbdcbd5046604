// A file or socket, closed at its end.
#pragma once

#include <unistd.h>

#include <utility>

namespace quantspec {

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }
  bool there() const { return number_ >= 0; }

 private:
  int number_;
};

}  // namespace quantspec
