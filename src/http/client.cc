// SPDX-License-Identifier: Apache-2.0
// Calls: a connection from the pool or a new one, the request out, the answer in as it comes.
#include "http/client.h"

#include <fmt/format.h>

#include <utility>

#include "http/client_line.h"
#include "http/head.h"
#include "http/reader.h"

namespace isthmus::http {
namespace {

constexpr std::size_t kAnswerHeaderBytesMax = std::size_t{64} << 10;

long long milliseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
}

// Shared by the handle and by what is in flight. Ends once: finish(), or cancel() by the handle.
class CallState : public std::enable_shared_from_this<CallState> {
 public:
  CallState(net::Loop& loop, ClientLimits limits, std::shared_ptr<LinePool> pool, net::Endpoint to)
      : loop_(loop), limits_(limits), pool_(std::move(pool)), to_(std::move(to)) {}

  void start(Request request, ClientEvents events) {
    events_ = std::move(events);
    is_body_absent_ = request.method == "HEAD";
    title_ = fmt::format("{} http://{}{}", request.method, to_.text(), request.path);
    text_ = request_head(request, to_.text());
    text_ += request.body;
    if (std::shared_ptr<Line> line = pool_->take(to_)) {
      is_reused_ = true;
      use(std::move(line));
    } else {
      connect();
    }
  }

  void rest() {
    if (is_over_ || !line_) return;
    is_resting_ = true;
    timer_.reset();
    line_->rest();
  }

  void go_on() {
    if (is_over_ || !std::exchange(is_resting_, false)) return;
    arm(limits_.piece_timeout, "the answer stopped");
    line_->go_on();
  }

  void cancel() {
    if (std::exchange(is_over_, true)) return;
    timer_.reset();
    connecting_.reset();
    if (line_) line_->close();
  }

 private:
  void connect() {
    connecting_ = net::connect_socket(
        loop_, to_, limits_.connect_timeout, [weak = weak_from_this()](Result<net::Socket> socket) {
          const auto self = weak.lock();
          if (!self || self->is_over_) return;
          if (!socket.ok()) return self->fail(socket.code(), socket.error().detail + "; nothing was sent");
          auto line = std::make_shared<Line>(*std::move(socket));
          line->start();
          self->use(std::move(line));
        });
  }

  void use(std::shared_ptr<Line> line) {
    line_ = std::move(line);
    new_reader();
    line_->set_user({.on_bytes =
                         [weak = weak_from_this()] {
                           if (const auto self = weak.lock()) self->on_bytes();
                         },
                     .on_end =
                         [weak = weak_from_this()](const std::string& why) {
                           if (const auto self = weak.lock()) self->on_end(why);
                         }});
    // A copy, because a reused line may have to be replaced.
    line_->write(text_);
    arm(limits_.head_timeout, "no answer");
  }

  void new_reader() {
    reader_ = make_response_reader({.header_bytes_max = kAnswerHeaderBytesMax, .body_bytes_max = {}},
                                   is_body_absent_);
  }

  void on_bytes() {
    if (is_over_) return;
    while (true) {
      const Status status = reader_->feed(line_->inbox);
      if (!status.ok()) return fail(status.code(), status.error().detail);
      const bool is_interim = reader_->status >= 100 && reader_->status < 200;
      if (!reader_->done() || !is_interim) break;
      new_reader();
    }
    deliver();
  }

  void on_end(const std::string& why) {
    if (is_over_) return;
    if (is_reused_ && !reader_->has_begun()) {
      is_reused_ = false;
      return connect();
    }
    // Without a length the end of the connection is the end of the answer.
    if (reader_->has_head() && reader_->end().ok()) return deliver();
    fail(Code::kUnavailable, fmt::format("{}; the request was sent, the answer isn't whole", why));
  }

  // Passes on what the reader has. Each callback may cancel.
  void deliver() {
    if (!reader_->has_head()) return;
    if (!std::exchange(is_head_told_, true) && events_.on_head)
      events_.on_head(reader_->status, reader_->headers);
    if (is_over_) return;
    const std::string piece = std::exchange(reader_->body, {});
    if (!piece.empty() && events_.on_piece) events_.on_piece(piece);
    if (is_over_) return;
    if (reader_->done()) return succeed();
    if (!is_resting_) arm(limits_.piece_timeout, "the answer stopped");
  }

  void succeed() {
    if (is_resting_) line_->go_on();  // Whoever has it next, or its end while it is idle, needs it read.
    const bool is_reusable =
        line_->is_open() && reader_->keep_alive() && line_->inbox.empty() && line_->is_written();
    if (is_reusable) {
      pool_->give(to_, std::move(line_));
    } else {
      line_->close();
    }
    finish(ok_status());
  }

  void fail(Code code, std::string_view why) {
    if (line_) line_->close();
    finish(Error{code, fmt::format("{}: {}", title_, why)});
  }

  void finish(Status status) {
    is_over_ = true;
    timer_.reset();
    const ClientEvents events = std::exchange(events_, {});  // Frees what they hold.
    if (events.on_done) events.on_done(std::move(status));
  }

  void arm(Duration limit, const char* what) {
    timer_ = loop_.after(limit, [weak = weak_from_this(), limit, what] {
      const auto self = weak.lock();
      if (self && !self->is_over_) {
        self->fail(Code::kDeadlineExceeded,
                   fmt::format("{} within {} ms; the request was sent", what, milliseconds(limit)));
      }
    });
  }

  net::Loop& loop_;
  ClientLimits limits_;
  std::shared_ptr<LinePool> pool_;
  net::Endpoint to_;
  ClientEvents events_;
  std::string title_;  // For messages.
  std::string text_;   // The whole request.
  bool is_body_absent_ = false;
  bool is_reused_ = false;
  bool is_head_told_ = false;
  bool is_over_ = false;
  bool is_resting_ = false;
  std::unique_ptr<net::Connecting> connecting_;
  std::shared_ptr<Line> line_;
  std::unique_ptr<Reader> reader_;
  std::unique_ptr<net::Loop::Timer> timer_;
};

class AsioCall final : public Call {
 public:
  explicit AsioCall(std::shared_ptr<CallState> state) : state_(std::move(state)) {}
  ~AsioCall() override { state_->cancel(); }
  void rest() override { state_->rest(); }
  void go_on() override { state_->go_on(); }

 private:
  std::shared_ptr<CallState> state_;
};

class AsioClient final : public Client {
 public:
  AsioClient(net::Loop& loop, const ClientLimits& limits)
      : loop_(loop), limits_(limits), pool_(std::make_shared<LinePool>(limits.idle_connections_max)) {}

  const ClientLimits& limits() const override { return limits_; }

  std::unique_ptr<Call> call(const net::Endpoint& to, Request request, ClientEvents events) override {
    auto state = std::make_shared<CallState>(loop_, limits_, pool_, to);
    state->start(std::move(request), std::move(events));
    return std::make_unique<AsioCall>(std::move(state));
  }

 private:
  net::Loop& loop_;
  ClientLimits limits_;
  std::shared_ptr<LinePool> pool_;
};

// The answer so far. The handle owns it; `done` is empty once called.
struct Gathering {
  Response response;
  std::function<void(Result<Response>)> done;
  std::unique_ptr<Call> call;

  void finish(Result<Response> result) {
    if (const auto told = std::exchange(done, nullptr)) told(std::move(result));
  }
};

class Fetching final : public Call {
 public:
  explicit Fetching(std::shared_ptr<Gathering> gathering) : gathering_(std::move(gathering)) {}
  ~Fetching() override {
    gathering_->done = nullptr;
    gathering_->call.reset();
  }
  void rest() override {
    if (gathering_->call) gathering_->call->rest();
  }
  void go_on() override {
    if (gathering_->call) gathering_->call->go_on();
  }

 private:
  std::shared_ptr<Gathering> gathering_;
};

}  // namespace

std::unique_ptr<Client> make_client(net::Loop& loop, const ClientLimits& limits) {
  return std::make_unique<AsioClient>(loop, limits);
}

std::unique_ptr<Call> fetch(Client& client, const net::Endpoint& to, Request request,
                            std::function<void(Result<Response>)> done) {
  auto gathering = std::make_shared<Gathering>();
  gathering->done = std::move(done);
  const std::weak_ptr<Gathering> weak = gathering;
  ClientEvents events{
      .on_head =
          [weak](int status, const Headers& headers) {
            if (const auto held = weak.lock())
              held->response = {.status = status, .headers = headers, .body = {}};
          },
      .on_piece =
          [weak, bytes_max = client.limits().body_bytes_max](std::string_view piece) {
            const auto held = weak.lock();
            if (!held) return;
            if (held->response.body.size() + piece.size() <= bytes_max) {
              held->response.body += piece;
              return;
            }
            held->call.reset();
            held->finish(Error{Code::kExhausted, fmt::format("answer longer than {} bytes", bytes_max)});
          },
      .on_done =
          [weak](const Status& status) {
            const auto held = weak.lock();
            if (!held) return;
            held->finish(status.ok() ? Result<Response>(std::move(held->response))
                                     : Result<Response>(status.error()));
          }};
  gathering->call = client.call(to, std::move(request), std::move(events));
  return std::make_unique<Fetching>(std::move(gathering));
}

}  // namespace isthmus::http
