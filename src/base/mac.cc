// SPDX-License-Identifier: Apache-2.0
// The one home of OpenSSL's digests and MAC.
#include "base/mac.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

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

Mac hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> message) {
  Mac mac{};
  unsigned int size = 0;
  ISTHMUS_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), as_uchars(message.data()),
                     message.size(), as_uchars(mac.data()), &size) != nullptr);
  ISTHMUS_CHECK(size == mac.size());
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
