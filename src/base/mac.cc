// SPDX-License-Identifier: Apache-2.0
// The one home of OpenSSL's digests and MAC.
#include "base/mac.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"

namespace isthmus {
namespace {

using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;

Context new_sha256() {
  Context context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  ISTHMUS_CHECK(context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  return context;
}

// A thread's own digest context. To fetch the algorithm and make a context anew takes ten times as long as to
// digest a short message.
class Hasher {
 public:
  static const Hasher& mine() {
    thread_local const Hasher hasher;
    return hasher;
  }

  Mac digest(std::span<const std::byte> first, std::span<const std::byte> second) const {
    EVP_MD_CTX* const context = context_.get();
    Mac digest{};
    unsigned int size = 0;
    ISTHMUS_CHECK(EVP_DigestInit_ex(context, algorithm_.get(), nullptr) == 1 &&
                  EVP_DigestUpdate(context, first.data(), first.size()) == 1 &&
                  EVP_DigestUpdate(context, second.data(), second.size()) == 1 &&
                  EVP_DigestFinal_ex(context, as_uchars(digest.data()), &size) == 1);
    ISTHMUS_CHECK(size == digest.size());
    return digest;
  }

 private:
  Hasher() { ISTHMUS_CHECK(algorithm_ && context_); }
  std::unique_ptr<EVP_MD, decltype(&EVP_MD_free)> algorithm_{EVP_MD_fetch(nullptr, "SHA256", nullptr),
                                                             EVP_MD_free};
  Context context_{EVP_MD_CTX_new(), EVP_MD_CTX_free};
};

std::string finish_hex(EVP_MD_CTX* context) {
  Mac digest{};
  unsigned int size = 0;
  ISTHMUS_CHECK(EVP_DigestFinal_ex(context, as_uchars(digest.data()), &size) == 1);
  ISTHMUS_CHECK(size == digest.size());
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", std::to_integer<unsigned>(byte));
  return text;
}

}  // namespace

// The keyed block comes first, then the parts, as RFC 2104 has it.
Mac hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  constexpr std::size_t kBlock = 64;
  const Hasher& hasher = Hasher::mine();
  std::array<std::byte, kBlock> inner{};
  if (key.size() > kBlock) {
    const Mac digest = hasher.digest(key, {});
    std::copy(digest.begin(), digest.end(), inner.begin());
  } else {
    std::copy(key.begin(), key.end(), inner.begin());
  }
  std::array<std::byte, kBlock> outer = inner;
  for (std::size_t i = 0; i < kBlock; ++i) {
    inner[i] ^= std::byte{0x36};
    outer[i] ^= std::byte{0x5c};
  }
  const Mac mac = hasher.digest(outer, hasher.digest(inner, message));
  OPENSSL_cleanse(inner.data(), inner.size());
  OPENSSL_cleanse(outer.data(), outer.size());
  return mac;
}

Key derive_key(const Key& key, std::string_view label, std::span<const std::byte> context) {
  std::vector<std::byte> message;
  const auto text = bytes_of(label);
  message.insert(message.end(), text.begin(), text.end());
  message.push_back(std::byte{0});
  message.insert(message.end(), context.begin(), context.end());
  return hmac_sha256(key, message);
}

bool equal_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

Result<std::string> sha256_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error{Code::kNotFound, fmt::format("cannot read {}", path)};
  const Context context = new_sha256();
  std::vector<char> buffer(std::size_t{1} << 20);
  while (file) {
    file.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    ISTHMUS_CHECK(EVP_DigestUpdate(context.get(), buffer.data(), static_cast<std::size_t>(file.gcount())) ==
                  1);
  }
  return finish_hex(context.get());
}

std::string sha256_hex(std::span<const std::byte> bytes) {
  const Context context = new_sha256();
  ISTHMUS_CHECK(EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1);
  return finish_hex(context.get());
}

Result<Key> load_key(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Error{Code::kInvalidArgument, fmt::format("key file {} cannot be read", path)};
  std::string text;
  file >> text;
  Key key{};
  const auto bad = [&] {
    return Error{Code::kInvalidArgument, fmt::format("key file {} isn't 64 hex digits", path)};
  };
  if (text.size() != 2 * key.size()) return bad();
  for (std::size_t i = 0; i < key.size(); ++i) {
    unsigned value = 0;
    const char* begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, value, 16);
    if (error != std::errc() || end != begin + 2) return bad();
    key.at(i) = static_cast<std::byte>(value);
  }
  return key;
}

}  // namespace isthmus
