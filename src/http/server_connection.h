// SPDX-License-Identifier: Apache-2.0
// One connection of a server; within http only.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "http/head.h"
#include "http/reader.h"
#include "http/server.h"
#include "net/asio_internal.h"

namespace isthmus::http {

class ServerConnection;

// What the server and its connections share. Connections hold it weakly: it goes with the server.
struct ServerState {
  net::Loop& loop;
  ServerLimits limits;
  Handler handler;
  std::set<std::shared_ptr<ServerConnection>> connections{};
  std::set<std::shared_ptr<ServerConnection>> refused{};  // Over the limit; open until they have read why.
  bool is_draining = false;                               // No request after the ones under way.
};

//   reading ──request whole──► answering ──answer flushed──► reading (keep-alive) | closing ──drained──►
//   closed
//      └────────refused────────────────────────────────────────► closing
// From any: the peer goes, a limit is hit, or the server is destroyed ⇒ closed.
class ServerConnection : public std::enable_shared_from_this<ServerConnection> {
 public:
  ServerConnection(const std::shared_ptr<ServerState>& server, net::Socket socket);

  void start();
  // Answers `error` with `status` to whatever comes, and closes.
  void refuse(int status, const Error& error);
  // At once, telling nobody.
  void close();
  // Closes if no request has begun.
  void close_if_idle();

  // The exchange's side; `request` says which one, and nothing happens once it is another's turn.
  bool is_current(std::uint64_t request) const { return phase_ == Phase::kAnswering && request_ == request; }
  void send(Response response);
  void begin(const Response& head);
  void write(std::string piece);
  void end();
  std::size_t buffered() const { return out_bytes_; }
  void on_drained(std::size_t bytes, std::function<void()> work);
  // Closes and tells on_disconnect by the loop, not from within this call.
  void abandon();
  // If the peer is gone already, `work` is posted.
  void on_disconnect(std::uint64_t request, std::function<void()> work);

 private:
  enum class Phase : std::uint8_t { kReading, kAnswering, kClosing, kClosed };

  void next_request();
  void parse();
  void dispatch();
  void read();
  void on_read(bool is_open, std::size_t bytes);
  void enqueue(std::string text);
  void flush();
  void on_flushed(std::size_t bytes);
  void finish_answer();
  void linger();
  // The peer is gone.
  void lose();
  Framing framing(std::optional<std::uint64_t> length) const;
  void arm(Duration delay);

  std::weak_ptr<ServerState> server_;
  net::Loop& loop_;
  ServerLimits limits_;
  net::Socket socket_;
  Phase phase_ = Phase::kReading;
  std::unique_ptr<Reader> reader_;
  std::array<char, 16384> chunk_{};  // What the read in flight fills.
  std::string inbox_;                // Read and not parsed: the request, then what was pipelined behind it.
  bool is_reading_ = false;
  std::uint64_t drained_bytes_ = 0;

  std::vector<std::string> outbox_;
  std::vector<std::string> writing_;
  std::size_t out_bytes_ = 0;  // In both.

  std::uint64_t request_ = 0;
  bool keep_alive_ = true;
  bool is_chunked_ = false;
  bool is_head_only_ = false;  // HEAD.
  bool is_version_1_0_ = false;
  bool has_continued_ = false;
  bool is_answered_ = false;
  void tell_drained();

  std::function<void()> on_disconnect_, on_drained_;
  std::size_t drained_at_bytes_ = 0;
  std::unique_ptr<net::Loop::Timer> timer_;        // For the request to arrive, and for lingering.
  std::unique_ptr<net::Loop::Timer> write_timer_;  // For the peer to take a write.
};

}  // namespace isthmus::http
