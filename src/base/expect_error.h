// For tests: expects one Error, of one line.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"

namespace quantspec {

// Runs `f`, which must throw an Error of that kind whose one line has every mention in it.
inline void expect_error(ErrorKind kind, const std::vector<std::string>& mentions,
                         const std::function<void()>& f) {
  try {
    f();
    ADD_FAILURE() << "no error; expected one that mentions " << mentions.front();
  } catch (const Error& error) {
    const std::string what = error.what();
    EXPECT_EQ(error.kind(), kind) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
    for (const auto& mention : mentions) EXPECT_NE(what.find(mention), std::string::npos) << what;
  }
}

}  // namespace quantspec
