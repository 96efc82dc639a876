// SPDX-License-Identifier: Apache-2.0
// Tiny GGUF models with random weights, written by tests; and the writer for other GGUF files.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"
#include "engine/probe/gguf.h"

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
  // A value with its type code, as GgufFile::raw() gives them.
  void raw(const std::string& key, std::span<const std::byte> value) {
    put_text(entries_, key);
    entries_.insert(entries_.end(), value.begin(), value.end());
    ++entry_count_;
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

// Around `middle`, at most `reach` away.
inline std::vector<float> random_floats(std::size_t count, std::uint64_t stream, double reach = 0.5,
                                        double middle = 0) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(middle + 2 * reach * (uniform_at(17, stream, i) - 0.5));
  return out;
}

// Layers of width 256 with 4 heads and 2 KV heads.
struct TestModel {
  static constexpr std::uint32_t kWidth = 256, kHeads = 4, kKvHeads = 2, kDim = 64, kVocabulary = 512,
                                 kInner = 128;

  std::string architecture = "llama";
  std::uint32_t dim = kDim;
  std::uint32_t layers = 2;
  bool has_biases = false, has_head_norms = false;
  bool has_post_norms = false;  // After attention and after the feed-forward.
  std::uint32_t window = 0;     // Of attention, where the architecture has one; 0: the file says nothing.
  float rope_theta = 50'000;
  double reach = 0.5;                   // Of the matrices' elements.
  const GgufFile* tokenizer = nullptr;  // Whose tokenizer the model has; none: 512 tokens that are no text.

  std::uint32_t vocabulary() const {
    if (tokenizer == nullptr) return kVocabulary;
    return static_cast<std::uint32_t>(tokenizer->array_length("tokenizer.ggml.tokens").value());
  }

  GgufWriter writer() const {
    GgufWriter gguf;
    gguf.text("general.architecture", architecture);
    gguf.text("general.name", "test");
    gguf.u32("general.file_type", 0);
    gguf.u32(architecture + ".block_count", layers);
    gguf.u32(architecture + ".embedding_length", kWidth);
    gguf.u32(architecture + ".attention.head_count", kHeads);
    gguf.u32(architecture + ".attention.head_count_kv", kKvHeads);
    gguf.u32(architecture + ".context_length", 4096);
    gguf.f32(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
    gguf.f32(architecture + ".rope.freq_base", rope_theta);
    if (window != 0) gguf.u32(architecture + ".attention.sliding_window", window);
    if (dim * kHeads != kWidth) {
      gguf.u32(architecture + ".attention.key_length", dim);
      gguf.u32(architecture + ".attention.value_length", dim);
    }
    if (tokenizer == nullptr) {
      gguf.texts("tokenizer.ggml.tokens", std::vector<std::string>(kVocabulary, "t"));
    } else {
      for (const auto& [key, value] : tokenizer->raw("tokenizer.")) gguf.raw(key, value);
    }
    return gguf;
  }
  // What K and V of layer 0 follow from.
  void add_tensors(GgufWriter& gguf) const {
    gguf.f32_tensor("token_embd.weight", {kWidth, vocabulary()},
                    random_floats(std::size_t{kWidth} * vocabulary(), 1));
    add_keys_and_values(gguf, "blk.0.", 2);
  }
  // What an engine needs beside those.
  void add_rest(GgufWriter& gguf) const {
    gguf.u32(architecture + ".feed_forward_length", kInner);
    gguf.f32_tensor("output_norm.weight", {kWidth}, random_floats(kWidth, 10));
    for (std::uint32_t i = 1; i < layers; ++i)
      add_keys_and_values(gguf, name_of(i), i == 1 ? 20 : 1000 + 10 * i);
    std::uint64_t stream = 40;
    for (std::uint32_t i = 0; i < layers; ++i) {
      const std::string layer = name_of(i);
      add_projection(gguf, layer + "attn_q", kHeads * dim, stream++);
      if (has_head_norms) gguf.f32_tensor(layer + "attn_q_norm.weight", {dim}, gains(dim, stream++));
      add_matrix(gguf, layer + "attn_output", kHeads * dim, kWidth, stream++);
      gguf.f32_tensor(layer + "ffn_norm.weight", {kWidth}, random_floats(kWidth, stream++));
      add_matrix(gguf, layer + "ffn_gate", kWidth, kInner, stream++);
      add_matrix(gguf, layer + "ffn_up", kWidth, kInner, stream++);
      add_matrix(gguf, layer + "ffn_down", kInner, kWidth, stream++);
      if (!has_post_norms) continue;
      // As large as an embedding that was scaled by 16, so that answers hang on what a layer adds.
      gguf.f32_tensor(layer + "post_attention_norm.weight", {kWidth}, random_floats(kWidth, stream++, 2, 6));
      gguf.f32_tensor(layer + "post_ffw_norm.weight", {kWidth}, random_floats(kWidth, stream++, 2, 6));
    }
  }
  std::string write(const std::string& path, bool whole = false) const {
    GgufWriter gguf = writer();
    add_tensors(gguf);
    if (whole) add_rest(gguf);
    return write_file(path, gguf.bytes());
  }

 private:
  static std::string name_of(std::uint32_t layer) { return "blk." + std::to_string(layer) + "."; }
  static std::vector<float> gains(std::uint32_t count, std::uint64_t stream) {
    return random_floats(count, stream, 0.5, 1);
  }
  void add_matrix(GgufWriter& gguf, const std::string& name, std::uint32_t columns, std::uint32_t rows,
                  std::uint64_t stream) const {
    gguf.f32_tensor(name + ".weight", {columns, rows},
                    random_floats(std::size_t{columns} * rows, stream, reach));
  }
  void add_projection(GgufWriter& gguf, const std::string& name, std::uint32_t rows,
                      std::uint64_t stream) const {
    add_matrix(gguf, name, kWidth, rows, stream);
    if (has_biases) gguf.f32_tensor(name + ".bias", {rows}, random_floats(rows, stream + 100));
  }
  void add_keys_and_values(GgufWriter& gguf, const std::string& layer, std::uint64_t stream) const {
    gguf.f32_tensor(layer + "attn_norm.weight", {kWidth}, random_floats(kWidth, stream));
    add_projection(gguf, layer + "attn_k", kKvHeads * dim, stream + 1);
    add_projection(gguf, layer + "attn_v", kKvHeads * dim, stream + 2);
    if (has_head_norms) gguf.f32_tensor(layer + "attn_k_norm.weight", {dim}, gains(dim, stream + 3));
  }
};

inline void PrintTo(const TestModel& model, std::ostream* out) {
  *out << model.architecture;
}

inline TestModel llama_model() {
  return {};
}
inline TestModel qwen2_model() {
  return {.architecture = "qwen2", .has_biases = true};
}
inline TestModel qwen3_model() {
  return {.architecture = "qwen3", .dim = 128, .has_head_norms = true};
}
inline TestModel gemma_model() {
  return {.architecture = "gemma", .dim = 256};
}
// Five layers with a window of 24 tokens, one without, one with.
inline TestModel gemma3_model() {
  return {.architecture = "gemma3",
          .dim = 128,
          .layers = 7,
          .has_head_norms = true,
          .has_post_norms = true,
          .window = 24,
          .rope_theta = 1e6};
}

// The file of a whole model with the tokenizer of the one at `shipped_path`, for as long as this lives.
class WrittenModel {
 public:
  WrittenModel(TestModel model, const std::string& shipped_path)
      : path_(std::filesystem::temp_directory_path() /
              ("isthmus-" + model.architecture + "-" + std::to_string(getpid()) + ".gguf")) {
    const GgufFile shipped = GgufFile::open(shipped_path).value();
    model.tokenizer = &shipped;
    model.reach = 0.7;  // So that the elements of K and V are about 1.
    model.write(path_.string(), true);
  }
  ~WrittenModel() { std::filesystem::remove(path_); }
  WrittenModel(const WrittenModel&) = delete;
  WrittenModel& operator=(const WrittenModel&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace isthmus::engine
