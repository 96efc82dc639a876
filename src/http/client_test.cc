// SPDX-License-Identifier: Apache-2.0
#include "http/client.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "base/bytes.h"
#include "http/server.h"
#include "net/run_until.h"

namespace isthmus::http {
namespace {

constexpr Duration kInstant = std::chrono::milliseconds(5);

class ClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = serve(loop_, {"127.0.0.1", 0}, {},
                        [this](std::shared_ptr<Exchange> exchange) { handle(std::move(exchange)); });
    ASSERT_TRUE(server.ok()) << server.error().detail;
    server_ = *std::move(server);
    client_ = make_client(loop_, {});
  }
  virtual void handle(std::shared_ptr<Exchange> exchange) {
    const Request& request = exchange->request();
    if (request.path == "/wait") return waiting_.push_back(std::move(exchange));
    exchange->send({.status = 201,
                    .headers = {{"X-Id", std::string(header(request.headers, "x-id"))}},
                    .body = request.method + request.query + request.body});
  }
  bool until(const std::function<bool()>& done) { return net::run_until(loop_, done); }
  Result<Response> get(const net::Endpoint& to, Request request) {
    std::optional<Result<Response>> answer;
    const auto call =
        fetch(*client_, to, std::move(request), [&](Result<Response> result) { answer = std::move(result); });
    EXPECT_FALSE(answer.has_value());  // Never from within fetch().
    EXPECT_TRUE(until([&] { return answer.has_value(); }));
    return answer ? *std::move(answer) : Result<Response>(Error{Code::kInternal, "no answer"});
  }

  net::Loop loop_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;
  std::vector<std::shared_ptr<Exchange>> waiting_;
};

// Everything a call is told.
struct Record {
  std::string text;
  std::optional<Status> done;
  int heads = 0;
  std::vector<std::string> pieces;
  ClientEvents events() {
    return {.on_head =
                [this](int status, const Headers&) {
                  ++heads;
                  text += std::to_string(status) + "|";
                },
            .on_piece =
                [this](std::string_view piece) {
                  text += piece;
                  pieces.emplace_back(piece);
                },
            .on_done =
                [this](Status status) {
                  EXPECT_FALSE(done.has_value());
                  done = std::move(status);
                }};
  }
};

TEST_F(ClientTest, FetchGivesStatusHeadersAndBody) {
  const auto answer =
      get(server_->endpoint(),
          {.method = "POST",
           .path = "/x",
           .query = "q=1",
           .headers = {{"X-Id", "7"}, {"Content-Length", "999"}, {"Transfer-Encoding", "chunked"}},
           .body = "body"});
  ASSERT_TRUE(answer.ok()) << answer.error().detail;
  EXPECT_EQ(answer->status, 201);
  EXPECT_EQ(header(answer->headers, "X-ID"), "7");
  EXPECT_EQ(answer->body, "POSTq=1body");
}

TEST_F(ClientTest, LargeBodiesGoBothWays) {
  const std::string body(3'000'000, 'y');
  const auto answer =
      get(server_->endpoint(), {.method = "POST", .path = "/x", .query = {}, .headers = {}, .body = body});
  ASSERT_TRUE(answer.ok()) << answer.error().detail;
  EXPECT_TRUE(answer->body == "POST" + body);
}

TEST_F(ClientTest, AnAnswerOverTheLimitIsExhausted) {
  client_ = make_client(loop_, {.body_bytes_max = 10});
  EXPECT_EQ(
      get(server_->endpoint(), {.method = "POST", .path = "/x", .query = {}, .headers = {}, .body = "123456"})
          ->body.size(),
      10u);
  EXPECT_EQ(get(server_->endpoint(),
                {.method = "POST", .path = "/x", .query = {}, .headers = {}, .body = "1234567"})
                .code(),
            Code::kExhausted);
}

TEST_F(ClientTest, PiecesArriveAsTheServerWritesThem) {
  Record record;
  const auto call = client_->call(server_->endpoint(),
                                  {.method = "GET", .path = "/wait", .query = {}, .headers = {}, .body = {}},
                                  record.events());
  ASSERT_TRUE(until([&] { return waiting_.size() == 1; }));
  waiting_[0]->begin({.status = 202, .headers = {}, .body = {}});
  ASSERT_TRUE(until([&] { return record.heads == 1; }));
  waiting_[0]->write("data: 1\n\n");
  ASSERT_TRUE(until([&] { return record.text == "202|data: 1\n\n"; }));
  waiting_[0]->write("data: 2\n\n");
  waiting_[0]->end();
  ASSERT_TRUE(until([&] { return record.done.has_value(); }));
  EXPECT_TRUE(record.done->ok());
  EXPECT_EQ(record.text, "202|data: 1\n\ndata: 2\n\n");
}

TEST_F(ClientTest, AStreamThatBreaksIsUnavailableAndSaysSo) {
  Record record;
  const auto call = client_->call(server_->endpoint(),
                                  {.method = "GET", .path = "/wait", .query = {}, .headers = {}, .body = {}},
                                  record.events());
  ASSERT_TRUE(until([&] { return waiting_.size() == 1; }));
  waiting_[0]->begin({});
  waiting_[0]->write("half");
  ASSERT_TRUE(until([&] { return record.text == "200|half"; }));
  waiting_.clear();
  ASSERT_TRUE(until([&] { return record.done.has_value(); }));
  EXPECT_EQ(record.done->code(), Code::kUnavailable);
  EXPECT_NE(record.done->error().detail.find("the request was sent"), std::string::npos);
}

TEST_F(ClientTest, DestroyingTheCallIsADisconnectForTheServerAndSilent) {
  Record record;
  bool told = false;
  auto call = client_->call(server_->endpoint(),
                            {.method = "GET", .path = "/wait", .query = {}, .headers = {}, .body = {}},
                            record.events());
  ASSERT_TRUE(until([&] { return waiting_.size() == 1; }));
  waiting_[0]->on_disconnect([&] { told = true; });
  call.reset();
  ASSERT_TRUE(until([&] { return told; }));
  EXPECT_FALSE(record.done.has_value());
}

TEST_F(ClientTest, ACallMayBeDestroyedInEachOfItsCallbacks) {
  for (int where = 0; where < 3; ++where) {
    std::unique_ptr<Call> call;
    bool destroyed = false;
    const auto destroy_at = [&](int here) {
      EXPECT_FALSE(destroyed);
      if (here != where) return;
      call.reset();
      destroyed = true;
    };
    call = client_->call(server_->endpoint(),
                         {.method = "GET", .path = "/", .query = {}, .headers = {}, .body = {}},
                         {.on_head = [&](int, const Headers&) { destroy_at(0); },
                          .on_piece = [&](std::string_view) { destroy_at(1); },
                          .on_done = [&](const Status&) { destroy_at(2); }});
    ASSERT_TRUE(until([&] { return destroyed; }));
  }
}

TEST_F(ClientTest, HundredCallsAtOnceAllGetTheirOwnAnswers) {
  std::vector<std::unique_ptr<Call>> calls;
  int right = 0;
  for (int i = 0; i < 100; ++i) {
    const std::string body = std::to_string(i);
    calls.push_back(fetch(*client_, server_->endpoint(),
                          {.method = "POST", .path = "/", .query = {}, .headers = {}, .body = body},
                          [&right, body](const Result<Response>& answer) {
                            right += answer.ok() && answer->body == "POST" + body ? 1 : 1000;
                          }));
  }
  ASSERT_TRUE(until([&] { return right >= 100; }));
  EXPECT_EQ(right, 100);
}

TEST_F(ClientTest, NobodyThereIsUnavailableWithNothingSent) {
  const net::Endpoint gone = server_->endpoint();
  server_.reset();
  const auto answer = get(gone, {.method = "GET", .path = "/", .query = {}, .headers = {}, .body = {}});
  EXPECT_EQ(answer.code(), Code::kUnavailable);
  EXPECT_NE(answer.error().detail.find("nothing was sent"), std::string::npos) << answer.error().detail;
}

TEST_F(ClientTest, AnAnswerThatNeverComesIsDeadlineExceeded) {
  client_ = make_client(loop_, {.head_timeout = kInstant});
  const auto answer =
      get(server_->endpoint(), {.method = "GET", .path = "/wait", .query = {}, .headers = {}, .body = {}});
  EXPECT_EQ(answer.code(), Code::kDeadlineExceeded);
}

TEST_F(ClientTest, AStreamThatStallsIsDeadlineExceeded) {
  client_ = make_client(loop_, {.piece_timeout = kInstant});
  Record record;
  const auto call = client_->call(server_->endpoint(),
                                  {.method = "GET", .path = "/wait", .query = {}, .headers = {}, .body = {}},
                                  record.events());
  ASSERT_TRUE(until([&] { return waiting_.size() == 1; }));
  waiting_[0]->begin({.headers = {}, .body = "x"});
  ASSERT_TRUE(until([&] { return record.done.has_value(); }));
  EXPECT_EQ(record.done->code(), Code::kDeadlineExceeded);
  EXPECT_EQ(record.text, "200|x");
}

// A server made of bytes: answers each connection's first request with `answer`, then closes if told to.
class BytesTest : public ClientTest {
 protected:
  void SetUp() override {
    ClientTest::SetUp();
    auto listening = net::listen(loop_, {"127.0.0.1", 0}, [this](std::unique_ptr<net::Stream> stream) {
      ++accepted_;
      streams_.push_back(std::move(stream));
      serve_next(streams_.back().get());
    });
    ASSERT_TRUE(listening.ok());
    listener_ = *std::move(listening);
  }
  // A request is over at its blank line: these have no body.
  void serve_next(net::Stream* stream) {
    stream->read({&byte_, 1}, [this, stream](const Status& status) {
      if (!status.ok()) return;
      seen_ += static_cast<char>(byte_);
      if (!seen_.ends_with("\r\n\r\n")) return serve_next(stream);
      seen_.clear();
      stream->write({bytes_of(answer_)}, [this, stream](const Status&) {
        if (is_closing_) return stream->close();
        serve_next(stream);
      });
    });
  }
  Result<Response> ask(std::string answer, bool is_closing) {
    answer_ = std::move(answer);
    is_closing_ = is_closing;
    return get(listener_->endpoint(), {.method = "GET", .path = "/", .query = {}, .headers = {}, .body = {}});
  }

  std::unique_ptr<net::Listener> listener_;
  std::vector<std::unique_ptr<net::Stream>> streams_;
  std::string answer_;
  std::string seen_;
  std::byte byte_{};
  bool is_closing_ = false;
  int accepted_ = 0;
};

constexpr const char* kOk = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

TEST_F(BytesTest, AConnectionIsReused) {
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(kOk, false)->body, "ok");
  EXPECT_EQ(accepted_, 1);
}

TEST_F(BytesTest, NoMoreIdleConnectionsThanTheLimitAreKept) {
  client_ = make_client(loop_, {.idle_connections_max = 0});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ask(kOk, false)->body, "ok");
  EXPECT_EQ(accepted_, 3);
}

TEST_F(BytesTest, AReusedConnectionThatTheServerClosesAtOnceIsReplaced) {
  EXPECT_EQ(ask(kOk, false)->body, "ok");
  // The server goes away at the very moment that the next request comes in.
  answer_ = "";
  is_closing_ = true;
  std::optional<Result<Response>> answer;
  const auto call = fetch(*client_, listener_->endpoint(),
                          {.method = "GET", .path = "/", .query = {}, .headers = {}, .body = {}},
                          [&](Result<Response> result) { answer = std::move(result); });
  ASSERT_TRUE(until([&] { return accepted_ == 2; }));
  answer_ = kOk;
  ASSERT_TRUE(until([&] { return answer.has_value(); }));
  ASSERT_TRUE(answer->ok()) << answer->error().detail;
  EXPECT_EQ((*answer)->body, "ok");
}

TEST_F(BytesTest, AFreshConnectionThatClosesWithoutAnAnswerIsUnavailableAndNotRepeated) {
  const auto answer = ask("", true);
  EXPECT_EQ(answer.code(), Code::kUnavailable);
  EXPECT_NE(answer.error().detail.find("the request was sent"), std::string::npos);
  EXPECT_EQ(accepted_, 1);
}

TEST_F(BytesTest, AnAnswerWithoutLengthEndsWithTheConnection) {
  EXPECT_EQ(ask("HTTP/1.1 200 OK\r\n\r\nto the end", true)->body, "to the end");
}

TEST_F(BytesTest, InterimAnswersAreSkipped) {
  EXPECT_EQ(ask("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 "
                "OK\r\nContent-Length: 1\r\n\r\nx",
                false)
                ->body,
            "x");
}

TEST_F(BytesTest, GarbageIsMalformedAndShortAnswersAreUnavailable) {
  EXPECT_EQ(ask("SSH-2.0-OpenSSH\r\n\r\n", true).code(), Code::kMalformed);
  EXPECT_EQ(ask("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", true).code(), Code::kUnavailable);
  EXPECT_EQ(ask("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n", true).code(),
            Code::kUnavailable);
  EXPECT_EQ(ask("HTTP/1.1 200 OK\r\nA: " + std::string(70'000, 'x') + "\r\n\r\n", false).code(),
            Code::kExhausted);
}

// A server that streams as fast as it is read, 24 MiB in all: far more than sockets hold.
class RestingClientTest : public ClientTest {
 protected:
  static constexpr std::size_t kPiece = std::size_t{64} << 10;
  static constexpr std::size_t kTotal = std::size_t{24} << 20;

  void handle(std::shared_ptr<Exchange> exchange) override {
    if (exchange->request().path != "/flood") return ClientTest::handle(std::move(exchange));
    exchange->begin({.status = 200, .headers = {}, .body = {}});
    flood(exchange);
  }
  void flood(const std::shared_ptr<Exchange>& exchange) {
    while (sent_ < kTotal && exchange->buffered() < 4 * kPiece) {
      exchange->write(std::string(kPiece, 'x'));
      sent_ += kPiece;
    }
    if (sent_ == kTotal) return exchange->end();
    exchange->on_drained(kPiece, [this, exchange] { flood(exchange); });
  }
  // Whatever could move has moved once these are answered.
  void let_others_pass() {
    for (int i = 0; i < 200; ++i) {
      ASSERT_TRUE(
          get(server_->endpoint(), {.method = "GET", .path = "/x", .query = {}, .headers = {}, .body = {}})
              .ok());
    }
  }
  std::size_t sent_ = 0;
};

TEST_F(RestingClientTest, ACallThatRestsReadsNothingUntilItGoesOn) {
  std::size_t received = 0;
  std::optional<Status> done;
  std::unique_ptr<Call> call;
  call = client_->call(server_->endpoint(),
                       {.method = "GET", .path = "/flood", .query = {}, .headers = {}, .body = {}},
                       {.on_piece =
                            [&](std::string_view piece) {
                              if (received == 0) call->rest();
                              received += piece.size();
                            },
                        .on_done = [&](Status status) { done = std::move(status); }});
  ASSERT_TRUE(until([&] { return received > 0; }));
  let_others_pass();
  EXPECT_LE(received, 2 * kPiece);
  EXPECT_LT(sent_, kTotal) << "the server's sends stall";
  EXPECT_FALSE(done.has_value());
  call->go_on();
  ASSERT_TRUE(until([&] { return done.has_value(); }));
  EXPECT_TRUE(done->ok());
  EXPECT_EQ(received, kTotal);
  let_others_pass();
}

TEST_F(RestingClientTest, ACallThatRestsMayBeGivenUp) {
  bool has_piece = false;
  std::unique_ptr<Call> call;
  call = client_->call(server_->endpoint(),
                       {.method = "GET", .path = "/flood", .query = {}, .headers = {}, .body = {}},
                       {.on_piece =
                            [&](std::string_view) {
                              has_piece = true;
                              call->rest();
                            },
                        .on_done = [](const Status&) { ADD_FAILURE(); }});
  ASSERT_TRUE(until([&] { return has_piece; }));
  call.reset();
  let_others_pass();
  EXPECT_LT(sent_, kTotal);
}

}  // namespace
}  // namespace isthmus::http
