// SPDX-License-Identifier: Apache-2.0
// One client a gathering; its limits are the gathering's time.
#include "watch/fetch.h"

#include <fmt/format.h>

#include <utility>

namespace isthmus::watch {

Gathering::Gathering(net::Loop& loop, const std::vector<Ask>& asks, Duration timeout,
                     std::function<void(Answers)> done)
    : loop_(loop),
      client_(http::make_client(
          loop, {.connect_timeout = timeout, .head_timeout = timeout, .piece_timeout = timeout})),
      left_(asks.size()),
      done_(std::move(done)) {
  for (const Ask& ask : asks) {
    answers_.emplace_back(Error{Code::kDeadlineExceeded,
                                fmt::format("http://{}{}: no answer in time", ask.to.text(), ask.path)});
  }
  for (std::size_t i = 0; i < asks.size(); ++i) {
    http::Request request;
    request.method = asks[i].body.empty() ? "GET" : "POST";
    request.path = asks[i].path;
    request.body = asks[i].body;
    if (!request.body.empty()) request.headers.emplace_back("Content-Type", "application/json");
    calls_.push_back(
        http::fetch(*client_, asks[i].to, std::move(request),
                    [this, i](Result<http::Response> answer) { answered(i, std::move(answer)); }));
  }
  // A server that trickles its answer keeps each limit of the client's; this one ends it all the same.
  timer_ = loop_.after(left_ == 0 ? Duration(0) : timeout, [this] {
    if (const auto finish = std::exchange(done_, nullptr)) finish(std::move(answers_));
  });
}

void Gathering::answered(std::size_t index, Result<http::Response> answer) {
  answers_[index] = std::move(answer);
  if (--left_ > 0) return;
  // Not from within the last call's callback: `done` may destroy this and with it the call.
  timer_ = loop_.after(Duration(0), [this] {
    if (const auto finish = std::exchange(done_, nullptr)) finish(std::move(answers_));
  });
}

Answers fetch_all(const std::vector<Ask>& asks, Duration timeout) {
  net::Loop loop;
  Answers all;
  const Gathering gathering(loop, asks, timeout, [&](Answers answers) {
    all = std::move(answers);
    loop.stop();
  });
  loop.run();
  return all;
}

Result<net::Endpoint> parse_url(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  std::string_view rest = url;
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  const auto endpoint = net::Endpoint::parse(rest);
  if (endpoint.ok() && endpoint->port != 0) return *endpoint;
  return Error{Code::kInvalidArgument, fmt::format("'{}' isn't http://HOST:PORT", url.substr(0, 128))};
}

}  // namespace isthmus::watch
