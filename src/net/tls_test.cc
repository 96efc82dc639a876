// SPDX-License-Identifier: Apache-2.0
#include "net/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "net/run_until.h"
#include "net/stream.h"
#include "net/test_authority.h"

namespace isthmus::net {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Duration kLimit = std::chrono::seconds(10);

std::vector<std::byte> pattern(std::size_t bytes) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 251);
  return out;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

// Two ends that want to speak, each with credentials of its own or none.
class TlsTest : public ::testing::Test {
 protected:
  void meet(const std::shared_ptr<const Tls>& server, const std::shared_ptr<const Tls>& client) {
    Result<std::unique_ptr<Listener>> listening = listen(
        loop_, {"127.0.0.1", 0}, [&](std::unique_ptr<Stream> stream) { server_ = std::move(stream); },
        server);
    ASSERT_TRUE(listening.ok()) << listening.error().detail;
    listener_ = *std::move(listening);
    dial(client, kLimit);
  }
  void dial(const std::shared_ptr<const Tls>& client, Duration timeout) {
    connecting_ = connect(
        loop_, listener_->endpoint(), timeout,
        [&](Result<std::unique_ptr<Stream>> stream) {
          if (stream.ok())
            client_ = *std::move(stream);
          else
            refused_ = stream.error();
        },
        client);
  }
  bool run(const std::function<bool()>& done) { return run_until(loop_, done); }
  // What the client learns when it reads from an end that wants nothing of it.
  Error answer() {
    EXPECT_TRUE(run([&] { return client_ || refused_; }));
    std::optional<Error> told = refused_;
    std::array<std::byte, 1> into{};
    if (client_) {
      client_->read(into, [&](const Status& status) {
        if (!status.ok()) told = status.error();
      });
    }
    EXPECT_TRUE(run([&] { return told.has_value(); }));
    return told.value_or(Error{});
  }

  Loop loop_;
  TestAuthority authority_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Connecting> connecting_;
  std::unique_ptr<Stream> client_, server_;
  std::optional<Error> refused_;
};

TEST_F(TlsTest, BytesCrossWholeAndInOrderBothWaysAtOnce) {
  meet(authority_.credentials("server"), authority_.credentials("client"));
  ASSERT_TRUE(run([&] { return client_ && server_; }));
  EXPECT_EQ(client_->peer(), listener_->endpoint().text());
  const std::vector<std::byte> sent = pattern(3'000'001);
  std::vector<std::byte> up(sent.size()), down(sent.size());
  const std::span<const std::byte> all(sent);
  std::vector<std::span<const std::byte>> pieces{all.first(0)};
  for (std::size_t at = 0; at < 10'000; at += 25) pieces.push_back(all.subspan(at, 25));
  pieces.push_back(all.subspan(10'000));
  int done = 0;
  const auto count = [&](const Status& status) { done += status.ok() ? 1 : 100; };
  client_->write(pieces, count);
  server_->write({all}, count);
  server_->read(up, count);
  client_->read_pieces({std::span(down).first(70'000), std::span(down).subspan(70'000)}, count);
  ASSERT_TRUE(run([&] { return done >= 4; }));
  EXPECT_EQ(done, 4);
  EXPECT_TRUE(up == sent);
  EXPECT_TRUE(down == sent);
}

// What OpenSSL has read ahead must not wait for more to come.
TEST_F(TlsTest, SmallReadsOfWhatCameAtOnceDontWait) {
  meet(authority_.credentials("server"), authority_.credentials("client"));
  ASSERT_TRUE(run([&] { return client_ && server_; }));
  const std::vector<std::byte> sent = pattern(100'000);
  std::vector<std::byte> got(sent.size());
  client_->write({std::span(sent)}, nullptr);
  std::size_t at = 0;
  bool failed = false;
  std::function<void()> next = [&] {
    if (at == got.size()) return;
    server_->read(std::span(got).subspan(at, 1000), [&](const Status& status) {
      failed |= !status.ok();
      at += 1000;
      next();
    });
  };
  next();
  ASSERT_TRUE(run([&] { return at == got.size() || failed; }));
  EXPECT_FALSE(failed);
  EXPECT_TRUE(got == sent);
}

TEST_F(TlsTest, AClientWithoutTlsIsRefused) {
  meet(authority_.credentials("server"), nullptr);
  ASSERT_TRUE(run([&] { return client_ != nullptr; }));
  client_->write({bytes_of("HELLO, not in your language")}, nullptr);
  EXPECT_EQ(answer().code, Code::kUnavailable);
  EXPECT_EQ(server_, nullptr);
}

// Passes on what one plain stream gets to another, byte for byte, and keeps it.
struct Tap {
  Stream* from = nullptr;
  Stream* to = nullptr;
  std::string seen{};
  bool flips_next = false;
  std::array<std::byte, 1> byte{};

  void run() {
    from->read(byte, [this](const Status& status) {
      if (!status.ok()) return to->close();
      if (std::exchange(flips_next, false)) byte[0] ^= std::byte{1};
      seen.push_back(static_cast<char>(byte[0]));
      to->write({byte}, [this](const Status& written) {
        if (written.ok()) run();
      });
    });
  }
};

TEST_F(TlsTest, WhoStandsBetweenReadsNothingAndChangesNothingUnnoticed) {
  meet(authority_.credentials("server"), nullptr);
  ASSERT_TRUE(run([&] { return client_ != nullptr; }));
  const std::unique_ptr<Stream> far = std::move(client_);
  std::unique_ptr<Stream> near;
  Tap up{.to = far.get()}, down{.from = far.get()};
  auto middle = listen(loop_, {"127.0.0.1", 0}, [&](std::unique_ptr<Stream> stream) {
    near = std::move(stream);
    up.from = down.to = near.get();
    up.run();
    down.run();
  });
  ASSERT_TRUE(middle.ok());
  std::swap(listener_, *middle);
  dial(authority_.credentials("client"), kLimit);
  ASSERT_TRUE(run([&] { return client_ && server_; }));

  const std::string secret = "a state that is nobody's business";
  std::string got(secret.size(), '?');
  bool is_read = false;
  client_->write({bytes_of(secret)}, nullptr);
  server_->read(std::as_writable_bytes(std::span(got)), [&](const Status& status) { is_read = status.ok(); });
  ASSERT_TRUE(run([&] { return is_read; }));
  EXPECT_EQ(got, secret);
  EXPECT_THAT(up.seen, Not(HasSubstr(secret)));

  up.flips_next = true;
  std::optional<Error> told;
  client_->write({bytes_of(secret)}, nullptr);
  server_->read(std::as_writable_bytes(std::span(got)), [&](const Status& status) {
    if (!status.ok()) told = status.error();
  });
  ASSERT_TRUE(run([&] { return told.has_value(); }));
  EXPECT_EQ(told->code, Code::kUnavailable);
}

TEST_F(TlsTest, AnEndWithoutACertificateOfTheFleetIsRefusedByEither) {
  TestAuthority other;
  meet(authority_.credentials("server"), other.credentials("client"));
  const Error by_client = answer();
  EXPECT_EQ(by_client.code, Code::kUnavailable);
  EXPECT_THAT(by_client.detail, HasSubstr("its certificate is refused"));
  EXPECT_EQ(client_, nullptr);
  EXPECT_EQ(server_, nullptr);
}

// The client trusts the server here, and not the other way round.
TEST_F(TlsTest, AClientOfAnotherAuthorityIsRefusedByTheServer) {
  TestAuthority other;
  TlsFiles files = other.issue("client");
  std::ofstream(files.authority, std::ios::app) << std::ifstream(authority_.issue("x").authority).rdbuf();
  const auto stranger = load_tls(files);
  ASSERT_TRUE(stranger.ok()) << stranger.error().detail;
  meet(authority_.credentials("server"), *stranger);
  const Error by_server = answer();
  EXPECT_EQ(by_server.code, Code::kUnavailable);
  EXPECT_THAT(by_server.detail, HasSubstr("unknown ca"));
  EXPECT_EQ(server_, nullptr);
}

TEST_F(TlsTest, AClientOfASilentOrPlainServerIsToldWhatMayBeWrong) {
  meet(nullptr, nullptr);
  ASSERT_TRUE(run([&] { return client_ && server_; }));
  client_.reset();
  dial(authority_.credentials("client"), std::chrono::milliseconds(50));
  ASSERT_TRUE(run([&] { return refused_.has_value(); }));
  EXPECT_EQ(refused_->code, Code::kDeadlineExceeded);
  EXPECT_THAT(refused_->detail, HasSubstr("does it speak TLS?"));

  refused_.reset();
  server_->write({bytes_of("HELLO, not in your language")}, nullptr);
  dial(authority_.credentials("client"), kLimit);
  server_.reset();
  ASSERT_TRUE(run([&] { return server_ != nullptr; }));
  server_->write({bytes_of("HELLO, not in your language")}, nullptr);
  ASSERT_TRUE(run([&] { return refused_.has_value(); }));
  EXPECT_EQ(refused_->code, Code::kUnavailable);
  EXPECT_THAT(refused_->detail, HasSubstr("TLS handshake: "));
}

// A listener that strangers keep waiting still serves, and turns away what is over its bound.
TEST_F(TlsTest, SilentGuestsAreBoundedAndDontKeepOthersOut) {
  meet(authority_.credentials("server"), authority_.credentials("client"));
  ASSERT_TRUE(run([&] { return client_ && server_; }));
  std::vector<std::unique_ptr<Connecting>> handles;
  std::vector<std::unique_ptr<Stream>> guests;
  int closed = 0;
  std::array<std::byte, 1> into{};
  for (int i = 0; i < 70; ++i) {
    handles.push_back(
        connect(loop_, listener_->endpoint(), kLimit, [&](Result<std::unique_ptr<Stream>> stream) {
          ASSERT_TRUE(stream.ok());
          guests.push_back(*std::move(stream));
          guests.back()->read(into, [&](const Status&) { ++closed; });
        }));
  }
  ASSERT_TRUE(run([&] { return guests.size() == 70 && closed >= 6; }));
  EXPECT_EQ(closed, 6);
  guests.clear();
  server_.reset();
  client_.reset();
  dial(authority_.credentials("client"), kLimit);
  ASSERT_TRUE(run([&] { return client_ && server_; }));
}

TEST_F(TlsTest, AnEndThatGoesIsTold) {
  meet(authority_.credentials("server"), authority_.credentials("client"));
  ASSERT_TRUE(run([&] { return client_ && server_; }));
  server_.reset();
  EXPECT_EQ(answer().code, Code::kUnavailable);
}

TEST_F(TlsTest, DestroyedHandlesCallNobody) {
  meet(authority_.credentials("server"), authority_.credentials("client"));
  connecting_.reset();
  listener_.reset();
  bool is_over = false;
  const auto timer = loop_.after(std::chrono::milliseconds(20), [&] { is_over = true; });
  ASSERT_TRUE(run([&] { return is_over; }));
  EXPECT_EQ(client_, nullptr);
  EXPECT_FALSE(refused_.has_value());
}

TEST(LoadTls, NamesTheFileThatPeersWouldRefuseAndWhy) {
  TestAuthority authority, other;
  const TlsFiles good = authority.issue("good");
  ASSERT_TRUE(load_tls(good).ok());
  const auto refusal = [&](auto change) {
    TlsFiles files = good;
    change(files);
    const auto loaded = load_tls(files);
    return loaded.ok() ? "" : loaded.error().text();
  };
  EXPECT_THAT(refusal([](TlsFiles& f) { f.key += "x"; }), HasSubstr("good.keyx: No such file"));
  EXPECT_THAT(refusal([](TlsFiles& f) { f.certificate = f.key; }), HasSubstr("good.key: no start line"));
  EXPECT_THAT(refusal([](TlsFiles& f) { f.authority = f.key; }), HasSubstr("good.key: "));
  EXPECT_THAT(refusal([&](TlsFiles& f) { f.key = authority.issue("else").key; }),
              HasSubstr("else.key: key values mismatch"));
  EXPECT_THAT(refusal([&](TlsFiles& f) { f.authority = other.issue("x").authority; }),
              HasSubstr("would refuse it: unable to get local issuer certificate"));
  EXPECT_THAT(refusal([&](TlsFiles& f) { f = authority.issue("old", std::chrono::seconds(-60)); }),
              HasSubstr("would refuse it: certificate has expired"));
}

}  // namespace
}  // namespace isthmus::net
