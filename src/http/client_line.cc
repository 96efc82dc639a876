// SPDX-License-Identifier: Apache-2.0
// A client's connections and the pool of idle ones.
#include "http/client_line.h"

#include <algorithm>
#include <boost/asio/write.hpp>
#include <utility>

namespace isthmus::http {

namespace asio = boost::asio;
using boost::system::error_code;

void Line::set_user(User user) {
  user_ = std::make_shared<const User>(std::move(user));
}

void Line::write(std::string text) {
  ISTHMUS_CHECK(is_written() && !text.empty());
  writing_ = std::move(text);
  asio::async_write(socket_, asio::buffer(writing_),
                    [self = shared_from_this()](const error_code& error, std::size_t) {
                      if (!error) self->writing_.clear();
                    });
}

void Line::read() {
  if (!is_open_ || is_resting_ || is_reading_) return;
  is_reading_ = true;
  socket_.async_read_some(
      asio::buffer(chunk_), [self = shared_from_this()](const error_code& error, std::size_t bytes) {
        self->is_reading_ = false;
        if (!self->is_open_) return;
        const std::shared_ptr<const User> user = self->user_;  // The callback may replace it.
        if (error) {
          self->close();
          if (user && user->on_end)
            user->on_end(error == asio::error::eof ? "the server closed the connection" : error.message());
          return;
        }
        self->inbox.append(self->chunk_.data(), bytes);
        if (user && user->on_bytes) user->on_bytes();
        self->read();
      });
}

void Line::close() {
  if (!std::exchange(is_open_, false)) return;
  user_.reset();
  error_code ignored;
  socket_.close(ignored);
}

LinePool::~LinePool() {
  for (const auto& [to, lines] : lines_) {
    for (const std::shared_ptr<Line>& line : lines) line->close();
  }
}

std::shared_ptr<Line> LinePool::take(const net::Endpoint& to) {
  const auto found = lines_.find(to);
  if (found == lines_.end()) return nullptr;
  std::shared_ptr<Line> line = std::move(found->second.back());
  found->second.pop_back();
  if (found->second.empty()) lines_.erase(found);
  return line;
}

void LinePool::give(const net::Endpoint& to, std::shared_ptr<Line> line) {
  std::vector<std::shared_ptr<Line>>& lines = lines_[to];
  if (lines.size() < lines_max_) {
    const auto leave = [weak = weak_from_this(), to, raw = line.get()] {
      if (const auto pool = weak.lock()) pool->drop(to, raw);
    };
    // Bytes that nobody asked for are as good a reason to drop it.
    line->set_user({.on_bytes = leave, .on_end = [leave](const std::string&) { leave(); }});
    lines.push_back(std::move(line));
  } else {
    line->close();
  }
  if (lines.empty()) lines_.erase(to);
}

void LinePool::drop(const net::Endpoint& to, const Line* line) {
  const auto found = lines_.find(to);
  if (found == lines_.end()) return;
  std::erase_if(found->second, [&](const std::shared_ptr<Line>& held) {
    if (held.get() == line) held->close();
    return held.get() == line;
  });
  if (found->second.empty()) lines_.erase(found);
}

}  // namespace isthmus::http
