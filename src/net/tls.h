// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 for streams, both ends certified: each shows a certificate of the fleet's own authority, and trusts
// nothing else. OpenSSL stays behind this header.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"

namespace isthmus::net {

// PEM files. The key is the certificate's and has no passphrase; the certificate's file may hold a chain.
struct TlsFiles {
  std::string certificate, key, authority;
  friend bool operator==(const TlsFiles&, const TlsFiles&) = default;
};

// What one end shows and trusts. Shared by its streams, which keep it alive.
class Tls;

// not_found: a file that can't be read. invalid_argument: no PEM, a key of another certificate, or a
// certificate that peers would refuse (not of this authority, not valid today), saying which.
Result<std::shared_ptr<const Tls>> load_tls(const TlsFiles& files);

}  // namespace isthmus::net
