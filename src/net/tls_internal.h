// SPDX-License-Identifier: Apache-2.0
// OpenSSL's objects with owners. Within net only.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace isthmus::net {

struct SslFree {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};

class Tls {
 public:
  explicit Tls(std::unique_ptr<SSL_CTX, SslFree> context) : context_(std::move(context)) {}
  // A connection's state; null if there is no memory.
  std::unique_ptr<SSL, SslFree> connection() const {
    return std::unique_ptr<SSL, SslFree>(SSL_new(context_.get()));
  }

 private:
  std::unique_ptr<SSL_CTX, SslFree> context_;
};

// The oldest of this thread's errors, in words; all are taken from the queue.
std::string take_tls_error();

}  // namespace isthmus::net
