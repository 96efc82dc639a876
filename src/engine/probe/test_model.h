// SPDX-License-Identifier: Apache-2.0
// A tiny GGUF model with random weights, written by tests; and the writer for other GGUF files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"

namespace isthmus::engine {

class GgufWriter {
 public:
  void text(const std::string& key, const std::string& value) {
    begin(key, 8);
    put_text(entries_, value);
  }
  void u32(const std::string& key, std::uint32_t value) {
    begin(key, 4);
    put(entries_, value);
  }
  void f32(const std::string& key, float value) {
    begin(key, 6);
    put(entries_, value);
  }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    begin(key, 9);
    put(entries_, std::uint32_t{8});
    put(entries_, static_cast<std::uint64_t>(values.size()));
    for (const std::string& value : values) put_text(entries_, value);
  }
  void tensor(const std::string& name, std::vector<std::uint64_t> shape, std::uint32_t type,
              std::span<const std::byte> data) {
    put_text(table_, name);
    put(table_, static_cast<std::uint32_t>(shape.size()));
    for (const std::uint64_t extent : shape) put(table_, extent);
    put(table_, type);
    put(table_, static_cast<std::uint64_t>(data_.size()));
    data_.insert(data_.end(), data.begin(), data.end());
    data_.resize((data_.size() + 31) / 32 * 32);
    ++tensor_count_;
  }
  void f32_tensor(const std::string& name, std::vector<std::uint64_t> shape,
                  const std::vector<float>& values) {
    tensor(name, std::move(shape), 0, bytes_of(std::span<const float>(values)));
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    put(out, std::uint32_t{0x46554747});
    put(out, std::uint32_t{3});
    put(out, tensor_count_);
    put(out, entry_count_);
    out.insert(out.end(), entries_.begin(), entries_.end());
    out.insert(out.end(), table_.begin(), table_.end());
    out.resize((out.size() + 31) / 32 * 32);
    out.insert(out.end(), data_.begin(), data_.end());
    return out;
  }

 private:
  template <typename T>
  static void put(std::vector<std::byte>& to, T value) {
    const auto raw = bytes_of(std::span<const T>(&value, 1));
    to.insert(to.end(), raw.begin(), raw.end());
  }
  static void put_text(std::vector<std::byte>& to, const std::string& value) {
    put(to, static_cast<std::uint64_t>(value.size()));
    const auto raw = bytes_of(std::string_view(value));
    to.insert(to.end(), raw.begin(), raw.end());
  }
  void begin(const std::string& key, std::uint32_t type) {
    put_text(entries_, key);
    put(entries_, type);
    ++entry_count_;
  }

  std::vector<std::byte> entries_, table_, data_;
  std::uint64_t entry_count_ = 0, tensor_count_ = 0;
};

inline std::string write_file(const std::string& path, std::span<const std::byte> bytes) {
  std::ofstream(path, std::ios::binary)
      .write(as_chars(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return path;
}

inline std::vector<float> random_floats(std::size_t count, std::uint64_t stream) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<float>(uniform_at(17, stream, i) - 0.5);
  return out;
}

// Layer 0 of a llama with 4 heads, 2 KV heads of 64, width 256, vocabulary 512.
struct TestModel {
  static constexpr std::uint32_t kWidth = 256, kHeads = 4, kKvHeads = 2, kDim = 64, kVocabulary = 512;

  static GgufWriter writer() {
    GgufWriter gguf;
    gguf.text("general.architecture", "llama");
    gguf.text("general.name", "test");
    gguf.u32("general.file_type", 0);
    gguf.u32("llama.block_count", 2);
    gguf.u32("llama.embedding_length", kWidth);
    gguf.u32("llama.attention.head_count", kHeads);
    gguf.u32("llama.attention.head_count_kv", kKvHeads);
    gguf.u32("llama.context_length", 4096);
    gguf.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf.f32("llama.rope.freq_base", 50'000.0f);
    gguf.texts("tokenizer.ggml.tokens", std::vector<std::string>(kVocabulary, "t"));
    return gguf;
  }
  static void add_tensors(GgufWriter& gguf) {
    gguf.f32_tensor("token_embd.weight", {kWidth, kVocabulary}, random_floats(kWidth * kVocabulary, 1));
    gguf.f32_tensor("blk.0.attn_norm.weight", {kWidth}, random_floats(kWidth, 2));
    gguf.f32_tensor("blk.0.attn_k.weight", {kWidth, kKvHeads * kDim},
                    random_floats(kWidth * kKvHeads * kDim, 3));
    gguf.f32_tensor("blk.0.attn_v.weight", {kWidth, kKvHeads * kDim},
                    random_floats(kWidth * kKvHeads * kDim, 4));
  }
  static std::string write(const std::string& path) {
    GgufWriter gguf = writer();
    add_tensors(gguf);
    return write_file(path, gguf.bytes());
  }
};

}  // namespace isthmus::engine
