// SPDX-License-Identifier: Apache-2.0
// Many small requests at once, each with an answer or a reason within a time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/time.h"
#include "http/client.h"
#include "net/loop.h"

namespace isthmus::watch {

struct Ask {
  net::Endpoint to;
  std::string path;
  std::string body{};  // JSON: POST; without: GET.
};
using Answers = std::vector<Result<http::Response>>;  // In the order of the asks.

// Loop's thread; the loop must run. `done` is called once, by the loop, when every ask has its answer: any
// status is one; else unavailable or deadline_exceeded. Destroying it gives up.
class Gathering {
 public:
  Gathering(net::Loop& loop, const std::vector<Ask>& asks, Duration timeout,
            std::function<void(Answers)> done);

 private:
  void answered(std::size_t index, Result<http::Response> answer);

  net::Loop& loop_;
  std::unique_ptr<http::Client> client_;
  std::vector<std::unique_ptr<http::Call>> calls_;
  Answers answers_;
  std::size_t left_ = 0;
  std::function<void(Answers)> done_;
  std::unique_ptr<net::Loop::Timer> timer_;
};

// The same with a loop of its own.
Answers fetch_all(const std::vector<Ask>& asks, Duration timeout);

// "http://HOST:PORT", with or without scheme and a last '/'. invalid_argument naming the text.
Result<net::Endpoint> parse_url(std::string_view url);

}  // namespace isthmus::watch
