// SPDX-License-Identifier: Apache-2.0
#include "http/server.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "http/json.h"
#include "http/raw_client_test.h"
#include "http/reader.h"

namespace isthmus::http {
namespace {

class ServerTest : public ::testing::Test {
 protected:
  // Answers with what the request was, unless `handler_` says otherwise.
  void serve_with(const ServerLimits& limits) {
    auto server = serve(loop_, {"127.0.0.1", 0}, limits, [this](std::shared_ptr<Exchange> exchange) {
      if (handler_) return handler_(std::move(exchange));
      const Request& request = exchange->request();
      exchange->send(
          {.headers = {},
           .body = request.method + " " + request.path + " ? " + request.query + " : " + request.body});
    });
    ASSERT_TRUE(server.ok()) << server.error().detail;
    server_ = *std::move(server);
  }
  void SetUp() override { serve_with({}); }
  bool until(const std::function<bool()>& done) { return net::run_until(loop_, done); }
  RawClient client() { return {loop_, server_->endpoint()}; }
  // Sends and waits until the server closed.
  std::string talk(std::string_view text) {
    RawClient raw(loop_, server_->endpoint());
    raw.send(text);
    EXPECT_TRUE(until([&] { return raw.is_closed; })) << raw.received;
    return raw.received;
  }

  net::Loop loop_;
  Handler handler_;
  std::unique_ptr<Server> server_;
};

json::Value error_in(const std::string& answer) {
  const auto body = json::parse(std::string_view(answer).substr(answer.find("\r\n\r\n") + 4));
  EXPECT_TRUE(body.ok()) << answer;
  return body.ok() && body->find("error") ? *body->find("error") : json::Value();
}

TEST_F(ServerTest, AWholeAnswerCarriesItsFraming) {
  const std::string answer =
      talk("POST /v1/x?a=1&b=2 HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc");
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\nDate: ")) << answer;
  EXPECT_NE(answer.find("\r\nContent-Length: 26\r\nConnection: close\r\n\r\nPOST /v1/x ? a=1&b=2 : abc"),
            std::string::npos)
      << answer;
}

TEST_F(ServerTest, ChunkedRequestBodiesAreJoined) {
  const std::string answer = talk(
      "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
      "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n");
  EXPECT_NE(answer.find("POST /c ?  : abcde"), std::string::npos) << answer;
}

TEST_F(ServerTest, RequestsOnOneConnectionAreAnsweredInOrderEvenIfPipelined) {
  std::vector<std::shared_ptr<Exchange>> waiting;
  handler_ = [&](std::shared_ptr<Exchange> exchange) { waiting.push_back(std::move(exchange)); };
  auto raw = client();
  raw.send(
      "GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\nGET /3 HTTP/1.1\r\nHost: "
      "h\r\n\r\n");
  for (std::size_t i = 1; i <= 3; ++i) {
    ASSERT_TRUE(until([&] { return waiting.size() == i; }));
    EXPECT_EQ(waiting.back()->request().path, "/" + std::to_string(i));
    EXPECT_TRUE(waiting.back()->connected());
    waiting.back()->send({.headers = {}, .body = "answer" + std::to_string(i)});
    EXPECT_FALSE(waiting.back()->connected());
    ASSERT_TRUE(until([&] { return raw.count("answer") == i; }));
  }
  EXPECT_LT(raw.received.find("answer1"), raw.received.find("answer2"));
  EXPECT_FALSE(raw.is_closed);
}

TEST_F(ServerTest, AStreamedAnswerArrivesInPiecesAsTheyAreWritten) {
  std::shared_ptr<Exchange> exchange;
  handler_ = [&](std::shared_ptr<Exchange> given) { exchange = std::move(given); };
  auto raw = client();
  raw.send("GET /s HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(until([&] { return exchange != nullptr; }));
  exchange->begin(
      {.headers = {{"Content-Type", "text/event-stream"}, {"X-Evil", "a\r\nSet-Cookie: b"}}, .body = {}});
  exchange->write("data: one\n\n");
  ASSERT_TRUE(until([&] { return raw.count("b\r\ndata: one\n\n\r\n") == 1; })) << raw.received;
  EXPECT_EQ(raw.count("Transfer-Encoding: chunked"), 1u);
  EXPECT_EQ(raw.count("\r\nSet-Cookie"), 0u);
  exchange->write("");  // Ends nothing.
  exchange->write("two");
  exchange->end();
  ASSERT_TRUE(until([&] { return raw.received.ends_with("3\r\ntwo\r\n0\r\n\r\n"); })) << raw.received;
  raw.send("GET /next HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  ASSERT_TRUE(until([&] { return exchange->request().path == "/next"; }));
  exchange->send({});
  ASSERT_TRUE(until([&] { return raw.is_closed; }));
}

TEST_F(ServerTest, AnOldClientGetsAStreamThatEndsWithTheConnection) {
  handler_ = [](const std::shared_ptr<Exchange>& exchange) {
    exchange->begin({});
    exchange->write("one");
    exchange->write("two");
    exchange->end();
  };
  const std::string answer = talk("GET / HTTP/1.0\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("Connection: close\r\n\r\nonetwo")) << answer;
}

TEST_F(ServerTest, HeadGetsNoBody) {
  const std::string answer = talk("HEAD /h HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(answer.ends_with("Content-Length: 13\r\nConnection: close\r\n\r\n")) << answer;
}

TEST_F(ServerTest, MalformedRequestsGet400InOpenAisShapeAndTheServerLives) {
  const std::vector<std::string> wrong = {
      "nonsense\r\n\r\n",
      "GET / HTTP/3.0\r\n\r\n",
      "GET / HTTP/1.1\r\nA b: c\r\n\r\n",
      std::string("\x16\x03\x01\x00\xff\x00\r\n\r\n", 10),
      "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
      "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
      "POST / HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"};
  for (const std::string& text : wrong) {
    const std::string answer = talk(text);
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 400 Bad Request")) << text << answer;
    EXPECT_EQ(*error_in(answer).find("type")->as_string(), "invalid_request_error") << text;
  }
  EXPECT_TRUE(talk("GET / HTTP/1.1\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200"));
}

TEST_F(ServerTest, ABodyOverTheLimitGets413EvenWhileItIsStillSent) {
  serve_with({.body_bytes_max = 1000});
  const std::string declared =
      "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 8000000\r\n\r\n" + std::string(8'000'000, 'x');
  const std::string chunked =
      "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3e9\r\n" + std::string(1001, 'x');
  for (const std::string& text : {declared, chunked}) {
    auto raw = client();
    raw.send(text);
    ASSERT_TRUE(until([&] { return raw.received.ends_with("}}"); }));
    EXPECT_TRUE(raw.received.starts_with("HTTP/1.1 413 Payload Too Large\r\n"));
    EXPECT_EQ(*error_in(raw.received).find("code")->as_string(), "invalid_argument");
    // Else a client that sends first and reads then would fail before it reads why.
    EXPECT_TRUE(until([&] { return raw.is_sent; }));
  }
  EXPECT_TRUE(
      talk("POST / HTTP/1.1\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n" + std::string(1000, 'x'))
          .starts_with("HTTP/1.1 200"));
}

TEST_F(ServerTest, AHeadOverTheLimitGets431) {
  serve_with({.header_bytes_max = 2000});
  EXPECT_TRUE(
      talk("GET / HTTP/1.1\r\nA: " + std::string(3000, 'x') + "\r\n\r\n").starts_with("HTTP/1.1 431"));
  std::string many = "GET / HTTP/1.1\r\n";
  for (int i = 0; i < 400; ++i) many += "A" + std::to_string(i) + ": x\r\n";
  EXPECT_TRUE(talk(many + "\r\n").starts_with("HTTP/1.1 431"));
}

TEST_F(ServerTest, ExpectContinueIsAnsweredBeforeTheBodyUnlessItIsTooLong) {
  serve_with({.body_bytes_max = 10});
  auto raw = client();
  raw.send("POST /e HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  ASSERT_TRUE(until([&] { return raw.received == "HTTP/1.1 100 Continue\r\n\r\n"; }));
  raw.send("ok");
  ASSERT_TRUE(until([&] { return raw.count("POST /e ?  : ok") == 1; }));
  EXPECT_EQ(raw.count("100 Continue"), 1u);
  const std::string refused =
      talk("POST /e HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n");
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 413")) << refused;
}

TEST_F(ServerTest, ADisconnectIsSeenWhileTheHandlerWaitsAndWhileItStreams) {
  for (const bool is_streaming : {false, true}) {
    std::shared_ptr<Exchange> exchange;
    int told = 0;
    handler_ = [&](std::shared_ptr<Exchange> given) {
      exchange = std::move(given);
      exchange->on_disconnect([&] { ++told; });
      if (is_streaming) exchange->begin({});
    };
    auto raw = client();
    raw.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    ASSERT_TRUE(until([&] { return exchange != nullptr; }));
    EXPECT_TRUE(exchange->connected());
    raw.stream.reset();
    ASSERT_TRUE(until([&] { return told > 0; }));
    EXPECT_FALSE(exchange->connected());
    bool told_late = false;
    exchange->on_disconnect([&] { told_late = true; });
    ASSERT_TRUE(until([&] { return told_late; }));
    if (is_streaming) {
      exchange->write("nobody hears");
      exchange->end();
    } else {
      exchange->send({});
    }
    exchange.reset();
    EXPECT_EQ(told, 1);
  }
}

TEST_F(ServerTest, AnExchangeMayBeDroppedWithinItsDisconnect) {
  std::shared_ptr<Exchange> exchange;
  handler_ = [&](std::shared_ptr<Exchange> given) {
    exchange = std::move(given);
    exchange->on_disconnect([&] { exchange.reset(); });
  };
  auto raw = client();
  raw.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(until([&] { return exchange != nullptr; }));
  raw.stream.reset();
  EXPECT_TRUE(until([&] { return exchange == nullptr; }));
}

TEST_F(ServerTest, AnUnansweredExchangeIs500AndAnUnfinishedStreamIsCut) {
  handler_ = [](const std::shared_ptr<Exchange>& exchange) {
    if (exchange->request().path == "/none") return;
    exchange->begin({});
    exchange->write("half");
  };
  const std::string none = talk("GET /none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(none.starts_with("HTTP/1.1 500 ")) << none;
  EXPECT_EQ(*error_in(none).find("code")->as_string(), "internal");
  const std::string half = talk("GET /half HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(half.find("0\r\n\r\n"), std::string::npos);
}

TEST_F(ServerTest, ASlowReaderIsDisconnectedAtTheBufferBound) {
  serve_with({.stream_buffer_bytes_max = 100'000});
  std::shared_ptr<Exchange> exchange;
  bool told = false;
  handler_ = [&](std::shared_ptr<Exchange> given) { exchange = std::move(given); };
  RawClient raw(loop_, server_->endpoint(), false);
  raw.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(until([&] { return exchange != nullptr; }));
  exchange->on_disconnect([&] { told = true; });
  exchange->begin({});
  const std::string piece(10'000, 'x');
  std::size_t written = 0;
  // The system's socket buffers fill first; each turn lets the server write what they take.
  while (exchange->connected()) {
    exchange->write(piece);
    ASSERT_LT(written += piece.size(), std::size_t{256} << 20);
    EXPECT_FALSE(told);  // Never from within write().
    bool turned = false;
    loop_.post([&] { turned = true; });
    if (exchange->connected()) {
      ASSERT_TRUE(until([&] { return turned; }));
    }
  }
  ASSERT_TRUE(until([&] { return told; }));
  EXPECT_GE(written, 100'000u);
}

TEST_F(ServerTest, SlowHeadsSlowBodiesAndIdleConnectionsAreClosedByTheTimeout) {
  serve_with({.idle_timeout = std::chrono::milliseconds(5)});
  EXPECT_EQ(talk("GET / HT"), "");
  EXPECT_EQ(talk("POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\nab"), "");
  auto idle = client();
  ASSERT_TRUE(until([&] { return idle.is_closed; }));
  // Kept alive, then closed. On a busy machine the request itself may come too late.
  std::string answer;
  while (answer.empty()) answer = talk("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_NE(answer.find("Connection: keep-alive"), std::string::npos) << answer;
}

TEST_F(ServerTest, AClientThatTakesNothingIsCutByTheTimeout) {
  serve_with(
      {.stream_buffer_bytes_max = std::uint64_t{128} << 20, .idle_timeout = std::chrono::milliseconds(300)});
  bool told = false;
  std::shared_ptr<Exchange> exchange;
  handler_ = [&](std::shared_ptr<Exchange> given) {
    exchange = std::move(given);
    exchange->on_disconnect([&] { told = true; });
    exchange->begin({.headers = {}, .body = std::string(64 << 20, 'x')});
  };
  RawClient raw(loop_, server_->endpoint(), false);
  raw.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(until([&] { return told; }));
}

TEST_F(ServerTest, ConnectionsOverTheLimitGet503) {
  serve_with({.connections_max = 2});
  auto first = client();
  auto second = client();
  // Both are accepted once they answer.
  for (RawClient* raw : {&first, &second}) {
    raw->send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    ASSERT_TRUE(until([&] { return raw->count("200 OK") == 1; }));
  }
  const std::string refused = talk("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_TRUE(refused.starts_with("HTTP/1.1 503")) << refused;
  EXPECT_NE(refused.find("Retry-After: 1"), std::string::npos);
  first.stream.reset();
  bool served = false;
  while (!served)
    served = talk("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").starts_with("HTTP/1.1 200");
}

// Else those who come back all the time would keep each other out.
TEST_F(ServerTest, RefusedConnectionsThatLingerTakeNobodysPlace) {
  serve_with({.connections_max = 1});
  auto served = client();
  served.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(until([&] { return served.count("200 OK") == 1; }));
  auto refused = client();
  ASSERT_TRUE(until([&] { return refused.count("503") == 1; }));
  EXPECT_EQ(server_->connections(), 2u) << "the refused one may still send";
  served.stream.reset();
  ASSERT_TRUE(until([&] { return server_->connections() == 1; }));
  const std::string next = talk("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
  EXPECT_TRUE(next.starts_with("HTTP/1.1 200")) << next;
}

TEST_F(ServerTest, StopAcceptingFinishesWhatIsUnderWay) {
  std::shared_ptr<Exchange> exchange;
  handler_ = [&](std::shared_ptr<Exchange> given) { exchange = std::move(given); };
  auto busy = client();
  busy.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  auto idle = client();
  ASSERT_TRUE(until([&] { return exchange != nullptr; }));
  server_->stop_accepting();
  ASSERT_TRUE(until([&] { return idle.is_closed; }));
  exchange->send({.headers = {}, .body = "done"});
  ASSERT_TRUE(until([&] { return busy.is_closed; }));
  EXPECT_TRUE(busy.received.ends_with("Connection: close\r\n\r\ndone")) << busy.received;
}

TEST_F(ServerTest, DestroyingTheServerClosesAllAndExchangesOutliveIt) {
  std::shared_ptr<Exchange> exchange;
  bool told = false;
  handler_ = [&](std::shared_ptr<Exchange> given) {
    exchange = std::move(given);
    exchange->on_disconnect([&] { told = true; });
    exchange->begin({});
    server_.reset();
  };
  auto raw = client();
  raw.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
  ASSERT_TRUE(until([&] { return raw.is_closed; }));
  EXPECT_FALSE(exchange->connected());
  exchange->write("x");
  exchange->end();
  exchange.reset();
  EXPECT_FALSE(told);
}

TEST(Reader, WhatMustBeSeenWholeIsBounded) {
  const std::string chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::vector<std::pair<std::string, std::string>> endless = {
      {"GET / HTTP/1.1\r\n", "Name: value\r\n"},             // A head of many fields,
      {"GET / HTTP/1.1\r\nName: ", "value"},                 // of one,
      {chunked + "1;", "extension"},                         // a chunk's head,
      {chunked + "1\r\nx\r\n0\r\n", "Trailer: value\r\n"}};  // trailers.
  for (const auto& [begin, more] : endless) {
    const auto reader = make_request_reader({.header_bytes_max = 2000, .body_bytes_max = 10});
    std::string in = begin;
    Status status = reader->feed(in);
    std::size_t sent = 0;
    for (; status.ok() && sent < 100'000; sent += more.size()) {
      in += more;
      status = reader->feed(in);
    }
    EXPECT_EQ(status.code(), Code::kExhausted) << begin;
    EXPECT_EQ(reader->status, 431);
    EXPECT_LT(sent, 4100u) << begin;
  }
}

TEST(Reader, AMessageIsTheSameHoweverItsBytesAreSplit) {
  const std::string text =
      "POST /p?q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\nGET";
  for (std::size_t first = 0; first < text.size(); ++first) {
    const auto reader = make_request_reader({.header_bytes_max = 2000, .body_bytes_max = 100});
    std::string in = text.substr(0, first);
    ASSERT_TRUE(reader->feed(in).ok());
    in += text.substr(first);
    if (!reader->done()) {
      ASSERT_TRUE(reader->feed(in).ok());
    }
    ASSERT_TRUE(reader->done()) << first;
    EXPECT_EQ(reader->target, "/p?q");
    EXPECT_EQ(reader->headers.size(), 2u);
    EXPECT_EQ(reader->body, "abcde");
    EXPECT_EQ(in, "GET");
  }
}

}  // namespace
}  // namespace isthmus::http
