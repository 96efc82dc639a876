// SPDX-License-Identifier: Apache-2.0
// A client that sends exactly the bytes it is told; for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/bytes.h"
#include "net/run_until.h"
#include "net/stream.h"

namespace isthmus::http {

struct RawClient {
  std::unique_ptr<net::Stream> stream;
  std::string received;
  bool is_closed = false;  // By the server.
  bool is_sent = false;    // The last text, whole.
  std::byte next{};

  RawClient(net::Loop& loop, const net::Endpoint& to, bool is_reading = true) {
    const auto connecting =
        net::connect(loop, to, std::chrono::seconds(10), [&](Result<std::unique_ptr<net::Stream>> result) {
          ASSERT_TRUE(result.ok()) << result.error().detail;
          stream = *std::move(result);
        });
    EXPECT_TRUE(net::run_until(loop, [&] { return stream != nullptr; }));
    if (is_reading) read();
  }

  void read() {
    stream->read({&next, 1}, [this](const Status& status) {
      is_closed = !status.ok();
      if (is_closed) return;
      received += static_cast<char>(next);
      read();
    });
  }
  // The text must live until it is sent.
  void send(std::string_view text) {
    is_sent = false;
    stream->write({bytes_of(text)}, [this](const Status& status) { is_sent = status.ok(); });
  }
  std::size_t count(std::string_view what) const {
    std::size_t found = 0;
    for (std::size_t at = received.find(what); at != std::string::npos; at = received.find(what, at + 1))
      ++found;
    return found;
  }
};

}  // namespace isthmus::http
