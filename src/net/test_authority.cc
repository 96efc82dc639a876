// SPDX-License-Identifier: Apache-2.0
// Certificates by OpenSSL.
#include "net/test_authority.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "base/check.h"

namespace isthmus::net {
namespace {

// Anything before the present will do: tests of times to come set the other end.
constexpr std::chrono::seconds kValidSince = std::chrono::hours(-24);

void write(const std::filesystem::path& path, const std::function<int(FILE*)>& content) {
  FILE* file = std::fopen(path.c_str(), "w");
  ISTHMUS_CHECK(file != nullptr);
  ISTHMUS_CHECK(content(file) == 1);
  ISTHMUS_CHECK(std::fclose(file) == 0);
}

std::string new_name() {
  static int number = 0;
  return "authority " + std::to_string(++number);
}

void may_sign(X509* certificate) {
  X509_EXTENSION* extension =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_basic_constraints, "critical,CA:TRUE");
  ISTHMUS_CHECK(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

void name_it(X509_NAME* name, const std::string& text) {
  const std::vector<unsigned char> bytes(text.begin(), text.end());
  const int count = static_cast<int>(bytes.size());
  ISTHMUS_CHECK(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, bytes.data(), count, -1, 0) == 1);
}

}  // namespace

struct TestAuthority::Pair {
  explicit Pair(const std::string& called) : key(EVP_EC_gen("P-256")), certificate(X509_new()) {
    ISTHMUS_CHECK(key != nullptr && certificate != nullptr);
    name_it(X509_get_subject_name(certificate), called);
    X509_set_version(certificate, X509_VERSION_3);
    X509_gmtime_adj(X509_getm_notBefore(certificate), kValidSince.count());
    X509_set_pubkey(certificate, key);
  }
  ~Pair() {
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  void sign(Pair& by, std::chrono::seconds valid_for) const {
    static int serial = 0;
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
    X509_gmtime_adj(X509_getm_notAfter(certificate), valid_for.count());
    X509_set_issuer_name(certificate, X509_get_subject_name(by.certificate));
    ISTHMUS_CHECK(X509_sign(certificate, by.key, EVP_sha256()) > 0);
  }
  void write_certificate(const std::filesystem::path& path) const {
    write(path, [&](FILE* file) { return PEM_write_X509(file, certificate); });
  }
  void write_key(const std::filesystem::path& path) const {
    write(path,
          [&](FILE* file) { return PEM_write_PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr); });
    std::filesystem::permissions(path,
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }

  EVP_PKEY* key;
  X509* certificate;
};

TestAuthority::TestAuthority() : own_(std::make_unique<Pair>(new_name())) {
  std::string path = (std::filesystem::temp_directory_path() / "isthmus-tls-XXXXXX").string();
  ISTHMUS_CHECK(::mkdtemp(path.data()) != nullptr);
  folder_ = path;
  may_sign(own_->certificate);
  own_->sign(*own_, std::chrono::hours(24));
  own_->write_certificate(folder_ / "authority.pem");
}

TestAuthority::~TestAuthority() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

TlsFiles TestAuthority::issue(const std::string& name, std::chrono::seconds valid_for) {
  const Pair pair(name);
  pair.sign(*own_, valid_for);
  const TlsFiles files{.certificate = (folder_ / (name + ".pem")).string(),
                       .key = (folder_ / (name + ".key")).string(),
                       .authority = (folder_ / "authority.pem").string()};
  pair.write_certificate(files.certificate);
  pair.write_key(files.key);
  return files;
}

std::shared_ptr<const Tls> TestAuthority::credentials(const std::string& name) {
  Result<std::shared_ptr<const Tls>> tls = load_tls(issue(name));
  ISTHMUS_CHECK(tls.ok());
  return *std::move(tls);
}

}  // namespace isthmus::net
