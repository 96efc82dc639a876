// SPDX-License-Identifier: Apache-2.0
// A connection of a server: requests one after the other, one read always outstanding so that a disconnect is
// seen.
#include "http/server_connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/write.hpp>
#include <utility>

#include "base/log.h"
#include "http/openai_error.h"

namespace isthmus::http {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Pipelined bytes taken while a request is answered. Beyond it reading rests, and a disconnect is seen by
// writing.
constexpr std::size_t kInboxBytesMax = std::size_t{64} << 10;
// What a refused client may still send before its connection is cut. Cutting at once would reset the
// connection, and the client might lose the answer that says why.
constexpr std::uint64_t kDrainBytesMax = std::uint64_t{64} << 20;
constexpr Duration kLingerTime = std::chrono::seconds(5);

// The public face of one request. Keeps its connection's memory, not the connection open.
class ServerExchange final : public Exchange {
 public:
  ServerExchange(std::shared_ptr<ServerConnection> connection, std::uint64_t number, Request request)
      : connection_(std::move(connection)), number_(number), request_(std::move(request)) {}
  ~ServerExchange() override {
    if (stage_ == Stage::kOpen) {
      ServerExchange::send(error_response({Code::kInternal, "the server gave no answer"}));
    } else if (stage_ == Stage::kStreaming && connected()) {
      connection_->abandon();
    }
  }

  const Request& request() const override { return request_; }

  void send(Response response) override {
    ISTHMUS_CHECK(stage_ == Stage::kOpen);
    stage_ = Stage::kDone;
    if (connected()) connection_->send(std::move(response));
  }
  void begin(Response head) override {
    ISTHMUS_CHECK(stage_ == Stage::kOpen);
    stage_ = Stage::kStreaming;
    if (connected()) connection_->begin(head);
  }
  void write(std::string piece) override {
    ISTHMUS_CHECK(stage_ == Stage::kStreaming);
    if (connected()) connection_->write(std::move(piece));
  }
  void end() override {
    ISTHMUS_CHECK(stage_ == Stage::kStreaming);
    stage_ = Stage::kDone;
    if (connected()) connection_->end();
  }
  void on_disconnect(std::function<void()> work) override {
    if (stage_ != Stage::kDone) connection_->on_disconnect(number_, std::move(work));
  }
  std::size_t buffered() const override { return connected() ? connection_->buffered() : 0; }
  void on_drained(std::size_t bytes, std::function<void()> work) override {
    if (connected()) connection_->on_drained(bytes, std::move(work));
  }
  bool connected() const override { return connection_->is_current(number_); }

 private:
  enum class Stage : std::uint8_t { kOpen, kStreaming, kDone };
  std::shared_ptr<ServerConnection> connection_;
  std::uint64_t number_;
  Request request_;
  Stage stage_ = Stage::kOpen;
};

// "/v1/models?x=1" or, as proxies write it, "http://host/v1/models?x=1".
void split_target(std::string_view target, Request& request) {
  constexpr std::string_view kScheme = "http://";
  if (target.starts_with(kScheme)) {
    const std::size_t slash = target.find('/', kScheme.size());
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
  }
  const std::size_t mark = target.find('?');
  request.path = std::string(target.substr(0, mark));
  if (mark != std::string_view::npos) request.query = std::string(target.substr(mark + 1));
}

}  // namespace

ServerConnection::ServerConnection(const std::shared_ptr<ServerState>& server, net::Socket socket)
    : server_(server), loop_(server->loop), limits_(server->limits), socket_(std::move(socket)) {}

void ServerConnection::start() {
  next_request();
}

void ServerConnection::next_request() {
  phase_ = Phase::kReading;
  reader_ = make_request_reader(
      {.header_bytes_max = limits_.header_bytes_max, .body_bytes_max = limits_.body_bytes_max});
  has_continued_ = false;
  // Not renewed by bytes that trickle in: a slow sender can't hold a connection for longer.
  arm(limits_.idle_timeout);
  parse();
}

void ServerConnection::parse() {
  const Status status = reader_->feed(inbox_);
  if (!status.ok()) return refuse(reader_->status, {Code::kInvalidArgument, status.error().detail});
  if (reader_->done()) return dispatch();
  const bool waits = reader_->has_head() && !std::exchange(has_continued_, reader_->has_head());
  if (waits && equal_ignoring_case(header(reader_->headers, "Expect"), "100-continue")) {
    enqueue("HTTP/1.1 100 Continue\r\n\r\n");
  }
  read();
}

void ServerConnection::dispatch() {
  const std::shared_ptr<ServerState> server = server_.lock();
  if (!server) return close();
  timer_.reset();
  phase_ = Phase::kAnswering;
  ++request_;
  keep_alive_ = reader_->keep_alive();
  is_version_1_0_ = reader_->is_version_1_0;
  is_head_only_ = reader_->method == "HEAD";
  is_answered_ = false;
  Request request{.method = std::move(reader_->method),
                  .path = {},
                  .query = {},
                  .headers = std::move(reader_->headers),
                  .body = std::move(reader_->body)};
  split_target(reader_->target, request);
  reader_.reset();
  read();
  server->handler(std::make_shared<ServerExchange>(shared_from_this(), request_, std::move(request)));
}

void ServerConnection::read() {
  const bool is_full = phase_ == Phase::kAnswering && inbox_.size() >= kInboxBytesMax;
  if (is_reading_ || is_full || phase_ == Phase::kClosed) return;
  is_reading_ = true;
  socket_.async_read_some(asio::buffer(chunk_),
                          [self = shared_from_this()](const error_code& error, std::size_t bytes) {
                            self->is_reading_ = false;
                            self->on_read(!error, bytes);
                          });
}

void ServerConnection::on_read(bool is_open, std::size_t bytes) {
  if (phase_ == Phase::kClosed) return;
  if (!is_open) return lose();
  if (phase_ == Phase::kClosing) {
    drained_bytes_ += bytes;
    return drained_bytes_ > kDrainBytesMax ? close() : read();
  }
  inbox_.append(chunk_.data(), bytes);
  return phase_ == Phase::kReading ? parse() : read();
}

void ServerConnection::refuse(int status, const Error& error) {
  phase_ = Phase::kClosing;
  timer_.reset();
  inbox_.clear();
  keep_alive_ = false;
  Response response = error_response(error);
  response.status = status;
  enqueue(response_head(response, framing(response.body.size())) + response.body);
  is_answered_ = true;
  read();
}

Framing ServerConnection::framing(std::optional<std::uint64_t> length) const {
  return {.length = length, .is_chunked = is_chunked_, .keep_alive = keep_alive_};
}

void ServerConnection::send(Response response) {
  const std::shared_ptr<ServerState> server = server_.lock();
  keep_alive_ = keep_alive_ && server && !server->is_draining;
  const bool is_bare = response.status == 204 || response.status == 304;
  std::string text =
      response_head(response, framing(is_bare ? std::nullopt : std::optional(response.body.size())));
  if (!is_bare && !is_head_only_) text += response.body;
  enqueue(std::move(text));
  finish_answer();
}

void ServerConnection::begin(const Response& head) {
  const std::shared_ptr<ServerState> server = server_.lock();
  is_chunked_ = !is_version_1_0_;
  // For HTTP/1.0 the end of the connection is the end of the answer.
  keep_alive_ = keep_alive_ && is_chunked_ && server && !server->is_draining;
  std::string text = response_head(head, framing(std::nullopt));
  enqueue(std::move(text));
  if (!head.body.empty()) write(head.body);
}

void ServerConnection::write(std::string piece) {
  // An empty chunk would end the answer.
  if (piece.empty() || is_head_only_) return;
  if (out_bytes_ > 0 && out_bytes_ + piece.size() > limits_.stream_buffer_bytes_max) {
    ISTHMUS_LOG(kWarn, "slow reader disconnected", "buffered={} bytes_max={}", out_bytes_,
                limits_.stream_buffer_bytes_max);
    return abandon();
  }
  if (!is_chunked_) return enqueue(std::move(piece));
  enqueue(fmt::format("{:x}\r\n{}\r\n", piece.size(), piece));
}

void ServerConnection::end() {
  if (is_chunked_ && !is_head_only_) enqueue("0\r\n\r\n");
  finish_answer();
}

void ServerConnection::finish_answer() {
  is_answered_ = true;
  is_chunked_ = false;
  ++request_;  // The exchange has no say from here on.
  on_disconnect_ = nullptr;
  on_drained_ = nullptr;
}

void ServerConnection::enqueue(std::string text) {
  out_bytes_ += text.size();
  outbox_.push_back(std::move(text));
  if (writing_.empty()) flush();
}

void ServerConnection::flush() {
  writing_ = std::exchange(outbox_, {});
  std::vector<asio::const_buffer> buffers;
  buffers.reserve(writing_.size());
  for (const std::string& text : writing_) buffers.push_back(asio::buffer(text));
  write_timer_ = loop_.after(limits_.idle_timeout, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->lose();
  });
  asio::async_write(socket_, buffers,
                    [self = shared_from_this()](const error_code& error, std::size_t bytes) {
                      if (self->phase_ == Phase::kClosed) return;
                      if (error) return self->lose();
                      self->on_flushed(bytes);
                    });
}

void ServerConnection::on_flushed(std::size_t bytes) {
  write_timer_.reset();
  out_bytes_ -= bytes;
  writing_.clear();
  tell_drained();
  if (!outbox_.empty()) return flush();
  if (!is_answered_ || phase_ == Phase::kReading) return;
  // The next request waits for this, so that pipelined requests can't pile up answers.
  is_answered_ = false;
  const std::shared_ptr<ServerState> server = server_.lock();
  return keep_alive_ && server && !server->is_draining ? next_request() : linger();
}

void ServerConnection::linger() {
  phase_ = Phase::kClosing;
  error_code ignored;
  socket_.shutdown(net::Socket::shutdown_send, ignored);
  arm(std::min(limits_.idle_timeout, kLingerTime));
  read();
}

void ServerConnection::arm(Duration delay) {
  timer_ = loop_.after(delay, [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->close();
  });
}

void ServerConnection::close() {
  if (std::exchange(phase_, Phase::kClosed) == Phase::kClosed) return;
  const auto self = shared_from_this();
  timer_.reset();
  write_timer_.reset();
  on_disconnect_ = nullptr;
  on_drained_ = nullptr;
  error_code ignored;
  socket_.close(ignored);
  if (const std::shared_ptr<ServerState> server = server_.lock()) {
    server->connections.erase(self);
    server->refused.erase(self);
  }
}

void ServerConnection::on_disconnect(std::uint64_t request, std::function<void()> work) {
  if (is_current(request)) {
    on_disconnect_ = std::move(work);
  } else {
    loop_.post(std::move(work));
  }
}

void ServerConnection::on_drained(std::size_t bytes, std::function<void()> work) {
  drained_at_bytes_ = bytes;
  on_drained_ = std::move(work);
  tell_drained();
}

void ServerConnection::tell_drained() {
  if (!on_drained_ || out_bytes_ > drained_at_bytes_) return;
  loop_.post([self = shared_from_this(), request = request_, tell = std::exchange(on_drained_, nullptr)] {
    if (self->is_current(request)) tell();
  });
}

void ServerConnection::close_if_idle() {
  if (phase_ == Phase::kReading && inbox_.empty() && !reader_->has_begun()) close();
}

void ServerConnection::lose() {
  const std::function<void()> tell = std::exchange(on_disconnect_, nullptr);
  close();
  if (tell) tell();
}

void ServerConnection::abandon() {
  loop_.post([tell = std::exchange(on_disconnect_, nullptr)] {
    if (tell) tell();
  });
  close();
}

}  // namespace isthmus::http
