// SPDX-License-Identifier: Apache-2.0
// OpenSSL on a non-blocking socket.
#include "net/tls_flow.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"
#include "net/socket_flow.h"
#include "net/tls_internal.h"

namespace isthmus::net {
namespace {

// What one record holds at most; small pieces share one.
constexpr std::size_t kRecordBytes = std::size_t{16} << 10;
// Sent under one key. The limit of AES-GCM, 2^24.5 records, lies at some hundred gigabytes.
constexpr std::uint64_t kBytesPerKey = std::uint64_t{64} << 30;

class TlsFlow final : public SocketFlow {
 public:
  TlsFlow(boost::asio::io_context& context, Socket socket, std::shared_ptr<const Tls> tls,
          std::unique_ptr<SSL, SslFree> ssl)
      : SocketFlow(context, std::move(socket)), tls_(std::move(tls)), ssl_(std::move(ssl)) {
    boost::system::error_code error;
    this->socket().native_non_blocking(true, error);
  }

  void shake(TlsEnd end, std::function<void(Status)> done) {
    on_shaken_ = std::move(done);
    if (SSL_set_fd(ssl_.get(), socket().native_handle()) == 1) {
      SSL_set_read_ahead(ssl_.get(), 1);
      end == TlsEnd::kServer ? SSL_set_accept_state(ssl_.get()) : SSL_set_connect_state(ssl_.get());
    }
    boost::asio::post(context(), [self = self()] { self->shake_turn(); });
  }
  void abandon() {
    if (std::exchange(on_shaken_, nullptr)) close();
  }

 private:
  std::shared_ptr<TlsFlow> self() { return std::static_pointer_cast<TlsFlow>(shared_from_this()); }

  void shake_turn() {
    if (!on_shaken_) return;
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    const int why = SSL_get_error(ssl_.get(), result);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
      return await(why == SSL_ERROR_WANT_WRITE, [self = self()] { self->shake_turn(); });
    const auto done = std::exchange(on_shaken_, nullptr);
    done(why == SSL_ERROR_NONE ? ok_status() : Status(failed("TLS handshake", why)));
  }

  Error failed(std::string_view what, int why) const {
    std::string text;
    if (const auto verdict = SSL_get_verify_result(ssl_.get()); verdict != X509_V_OK) {
      text = fmt::format("its certificate is refused: {}", X509_verify_cert_error_string(verdict));
      ERR_clear_error();
    } else if (why == SSL_ERROR_ZERO_RETURN) {
      text = "the peer closed the connection";
    } else if (why == SSL_ERROR_SYSCALL) {
      text = errno != 0 ? std::strerror(errno) : "the connection ended";
    } else {
      text = take_tls_error();
    }
    return {Code::kUnavailable, fmt::format("{}: {}: {}", name(), what, text)};
  }

  // `why` a call ended that came after `moved` bytes. What failed behind them is told by the next call, and
  // the wait for it must end.
  Result<std::size_t> stopped(std::size_t moved, std::string_view what, int why) {
    failure_ = failed(what, why);
    if (moved == 0) return *failure_;
    ::shutdown(socket().native_handle(), SHUT_RDWR);
    return moved;
  }

  // Until OpenSSL holds nothing more: the wait that follows asks the socket alone.
  Result<std::size_t> receive(std::span<iovec> into) override {
    if (failure_.has_value()) return *failure_;
    std::size_t got = 0;
    for (const iovec& piece : into) {
      for (std::size_t at = 0; at < piece.iov_len;) {
        std::size_t bytes = 0;
        ERR_clear_error();
        errno = 0;
        const int result =
            SSL_read_ex(ssl_.get(), static_cast<std::byte*>(piece.iov_base) + at, piece.iov_len - at, &bytes);
        if (result != 1) {
          const int why = SSL_get_error(ssl_.get(), result);
          return why == SSL_ERROR_WANT_READ ? Result<std::size_t>(got) : stopped(got, "TLS read", why);
        }
        at += bytes;
        got += bytes;
      }
    }
    return got;
  }

  // A record that the socket didn't take is tried again as it was: `from` begins with it then.
  Result<std::size_t> transmit(std::span<iovec> from) override {
    if (failure_.has_value()) return *failure_;
    std::size_t sent = 0;
    for (;;) {
      if (held_ == 0) gather(from, sent);
      if (held_ == 0) return sent;
      std::size_t bytes = 0;
      ERR_clear_error();
      errno = 0;
      const int result = SSL_write_ex(ssl_.get(), record_.data(), held_, &bytes);
      if (result != 1) {
        const int why = SSL_get_error(ssl_.get(), result);
        return why == SSL_ERROR_WANT_WRITE ? Result<std::size_t>(sent) : stopped(sent, "TLS write", why);
      }
      sent += std::exchange(held_, 0);
      renew_key(bytes);
    }
  }

  // Fills the record with what comes after the first `skip` bytes.
  void gather(std::span<const iovec> from, std::size_t skip) {
    for (const iovec& piece : from) {
      const std::size_t skipped = std::min(skip, piece.iov_len);
      skip -= skipped;
      const std::size_t part = std::min(piece.iov_len - skipped, kRecordBytes - held_);
      std::copy_n(static_cast<const std::byte*>(piece.iov_base) + skipped, part, record_.begin() + held_);
      held_ += part;
      if (held_ == kRecordBytes) return;
    }
  }

  void renew_key(std::size_t bytes) {
    under_key_ += bytes;
    if (under_key_ < kBytesPerKey) return;
    under_key_ = 0;
    SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
  }

  std::shared_ptr<const Tls> tls_;
  std::unique_ptr<SSL, SslFree> ssl_;
  std::function<void(Status)> on_shaken_;  // Empty once told or abandoned.
  std::optional<Error> failure_;           // Nothing follows it.
  std::array<std::byte, kRecordBytes> record_{};
  std::size_t held_ = 0;  // Of `record_`, not sent yet.
  std::uint64_t under_key_ = 0;
};

class Shaking final : public Handshake {
 public:
  explicit Shaking(std::shared_ptr<TlsFlow> flow) : flow_(std::move(flow)) {}
  ~Shaking() override { flow_->abandon(); }

 private:
  std::shared_ptr<TlsFlow> flow_;
};

}  // namespace

std::unique_ptr<Handshake> shake_hands(Loop& loop, Socket socket, std::shared_ptr<const Tls> tls, TlsEnd end,
                                       std::function<void(Result<std::shared_ptr<Flow>>)> done) {
  std::unique_ptr<SSL, SslFree> ssl = tls->connection();
  ISTHMUS_CHECK(ssl != nullptr);
  const auto flow =
      std::make_shared<TlsFlow>(loop.asio().context, std::move(socket), std::move(tls), std::move(ssl));
  flow->shake(end, [weak = std::weak_ptr(flow), done = std::move(done)](const Status& status) {
    if (!status.ok()) return done(status.error());
    done(std::shared_ptr<Flow>(weak.lock()));
  });
  return std::make_unique<Shaking>(flow);
}

}  // namespace isthmus::net
