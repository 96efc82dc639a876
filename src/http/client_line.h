// SPDX-License-Identifier: Apache-2.0
// One connection of a client, used by one call at a time; within http only.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "http/client.h"
#include "net/asio_internal.h"

namespace isthmus::http {

// A socket that is read from unless its user wants a rest, so that the server's closing it is seen even when
// it is idle.
class Line : public std::enable_shared_from_this<Line> {
 public:
  // Both on the loop's thread; `on_end` once, with the reason, unless close() came first.
  struct User {
    std::function<void()> on_bytes{};
    std::function<void(std::string why)> on_end{};
  };

  explicit Line(net::Socket socket) : socket_(std::move(socket)) {}

  void start() { read(); }
  void set_user(User user);
  // One at a time. A failure isn't told: the server may have answered before it stopped reading.
  void write(std::string text);
  bool is_written() const { return writing_.empty(); }
  bool is_open() const { return is_open_; }
  void rest() { is_resting_ = true; }
  void go_on() {
    is_resting_ = false;
    read();
  }
  void close();

  std::string inbox;  // Read and not taken yet.

 private:
  void read();

  net::Socket socket_;
  bool is_open_ = true, is_resting_ = false, is_reading_ = false;
  std::array<char, 65536> chunk_{};
  std::string writing_;
  std::shared_ptr<const User> user_;
};

// Idle lines by endpoint, at most `lines_max` each. Lines that end leave it.
class LinePool : public std::enable_shared_from_this<LinePool> {
 public:
  explicit LinePool(std::uint32_t lines_max) : lines_max_(lines_max) {}
  ~LinePool();
  LinePool(const LinePool&) = delete;
  LinePool& operator=(const LinePool&) = delete;

  // The one used last, or null.
  std::shared_ptr<Line> take(const net::Endpoint& to);
  void give(const net::Endpoint& to, std::shared_ptr<Line> line);

 private:
  void drop(const net::Endpoint& to, const Line* line);

  std::uint32_t lines_max_;
  std::map<net::Endpoint, std::vector<std::shared_ptr<Line>>> lines_;
};

}  // namespace isthmus::http
