// SPDX-License-Identifier: Apache-2.0
// For tests: an authority that certifies the ends of their connections.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "net/tls.h"

namespace isthmus::net {

// A new key and a folder of its own, which goes with it.
class TestAuthority {
 public:
  TestAuthority();
  ~TestAuthority();
  TestAuthority(const TestAuthority&) = delete;
  TestAuthority& operator=(const TestAuthority&) = delete;

  // The files of an end called `name`, whose certificate ends so long from now.
  TlsFiles issue(const std::string& name, std::chrono::seconds valid_for = std::chrono::hours(24));
  // The same, loaded.
  std::shared_ptr<const Tls> credentials(const std::string& name);

 private:
  struct Pair;
  std::filesystem::path folder_;
  std::unique_ptr<Pair> own_;
};

}  // namespace isthmus::net
