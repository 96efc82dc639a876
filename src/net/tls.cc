// SPDX-License-Identifier: Apache-2.0
// Loading and judging this end's credentials.
#include "net/tls.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/x509.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "net/tls_internal.h"

namespace isthmus::net {
namespace {

Error wrong(const std::string& file, std::string_view what) {
  return {Code::kInvalidArgument, fmt::format("{}: {}", file, what)};
}

Status readable(const TlsFiles& files) {
  for (const std::string* file : {&files.certificate, &files.key, &files.authority}) {
    if (::access(file->c_str(), R_OK) != 0)
      return Error{Code::kNotFound, fmt::format("{}: {}", *file, std::strerror(errno))};
  }
  return ok_status();
}

// What every peer will ask of our certificate: better told at the start than by each of them.
Status judge(SSL_CTX* context, const TlsFiles& files) {
  struct Free {
    void operator()(X509_STORE_CTX* store) const { X509_STORE_CTX_free(store); }
  };
  const std::unique_ptr<X509_STORE_CTX, Free> store(X509_STORE_CTX_new());
  STACK_OF(X509)* chain = nullptr;
  SSL_CTX_get0_chain_certs(context, &chain);
  if (store == nullptr || X509_STORE_CTX_init(store.get(), SSL_CTX_get_cert_store(context),
                                              SSL_CTX_get0_certificate(context), chain) != 1)
    return wrong(files.certificate, take_tls_error());
  if (X509_verify_cert(store.get()) == 1) return ok_status();
  const int why = X509_STORE_CTX_get_error(store.get());
  ERR_clear_error();
  return wrong(files.certificate, fmt::format("peers that trust {} would refuse it: {}", files.authority,
                                              X509_verify_cert_error_string(why)));
}

}  // namespace

std::string take_tls_error() {
  const unsigned long code = ERR_get_error();  // NOLINT(google-runtime-int): as OpenSSL has it.
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "no reason given";
}

Result<std::shared_ptr<const Tls>> load_tls(const TlsFiles& files) {
  ISTHMUS_TRY_STATUS(readable(files));
  (void)std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that may be closed at their other end.
  ERR_clear_error();
  std::unique_ptr<SSL_CTX, SslFree> context(SSL_CTX_new(TLS_method()));
  if (context == nullptr) return Error{Code::kInternal, fmt::format("TLS: {}", take_tls_error())};
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_3_VERSION);
  // Frames have lengths and checks of their own: an end without farewell is an end.
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  // Without it a key with a passphrase would be asked for at the terminal.
  SSL_CTX_set_default_passwd_cb(raw, [](char*, int, int, void*) { return 0; });
  if (SSL_CTX_use_certificate_chain_file(raw, files.certificate.c_str()) != 1)
    return wrong(files.certificate, take_tls_error());
  if (SSL_CTX_use_PrivateKey_file(raw, files.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return wrong(files.key, take_tls_error());
  if (SSL_CTX_load_verify_file(raw, files.authority.c_str()) != 1)
    return wrong(files.authority, take_tls_error());
  ISTHMUS_TRY_STATUS(judge(raw, files));
  return std::shared_ptr<const Tls>(std::make_shared<Tls>(std::move(context)));
}

}  // namespace isthmus::net
