// SPDX-License-Identifier: Apache-2.0
// Other readings of the same bytes against what is expected, and the described reading against other
// expectations.
#include "engine/probe/hypotheses.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "engine/probe/described.h"
#include "engine/probe/probe.h"

namespace isthmus::engine {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Rows that a component would hold if `claim` were so.
struct Expectation {
  std::string claim;
  std::vector<float> rows;
};

// A descriptor and binding that would be right if `claim` were so.
struct Reading {
  std::string claim;
  kv::Descriptor descriptor;
  kv::Binding binding;
};

std::vector<float> with_heads_shifted(const RowShape& shape, std::span<const float> rows, std::uint32_t by) {
  std::vector<float> out(rows.size());
  for (std::size_t row = 0; row < rows.size() / shape.dim; ++row) {
    const std::size_t token = row / shape.heads, head = row % shape.heads;
    const std::size_t from = token * shape.heads + (head + by) % shape.heads;
    std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(from * shape.dim), shape.dim,
                out.begin() + static_cast<std::ptrdiff_t>(row * shape.dim));
  }
  return out;
}

// Rows as the descriptor says that they are stored, from what they are before any hadamard.
std::vector<float> as_stored(const Subject& subject, bool key, std::span<const float> rows) {
  const std::size_t size = described_hadamard(*subject.descriptor, key ? "k" : "v");
  return size == 0 ? std::vector<float>(rows.begin(), rows.end()) : with_hadamard(rows, size);
}

std::vector<float> described_k(const Subject& subject) {
  const Layer0& truth = *subject.truth;
  const std::string pairing = described_pairing(*subject.descriptor);
  if (pairing == "none") return as_stored(subject, true, truth.k);
  return as_stored(subject, true, kept(truth, truth.k, pairing, truth.rope_theta));
}

std::vector<float> described_v(const Subject& subject) {
  return as_stored(subject, false, subject.truth->v);
}

// Expectations that serve K and V alike; `rows` are those before any hadamard.
void add_common(const Subject& subject, bool key, const std::vector<float>& rows,
                std::vector<Expectation>& out) {
  const RowShape& shape = subject.truth->shape;
  const std::vector<float> stored = as_stored(subject, key, rows);
  for (std::uint32_t by = 1; by < shape.heads; ++by) {
    out.push_back({fmt::format("heads are stored rotated by {}", by), with_heads_shifted(shape, stored, by)});
  }
  const std::size_t described = described_hadamard(*subject.descriptor, key ? "k" : "v");
  if (described != 0) {
    out.push_back(
        {fmt::format("rows are stored without the hadamard:{} that the descriptor says", described), rows});
  }
  for (std::size_t size = 64; size <= shape.dim && shape.dim % size == 0; size *= 2) {
    if (size == described) continue;
    out.push_back({fmt::format("rows are stored after hadamard:{}", size), with_hadamard(rows, size)});
  }
}

std::vector<Expectation> k_expectations(const Subject& subject) {
  const Layer0& truth = *subject.truth;
  const std::string pairing = described_pairing(*subject.descriptor);
  const auto as_described = [&](double theta, std::int64_t first_position = 0) {
    return kept(truth, truth.k, pairing, theta, first_position);
  };
  std::vector<Expectation> out;
  const auto add = [&](std::string claim, std::span<const float> rows) {
    out.push_back({std::move(claim), as_stored(subject, true, rows)});
  };
  for (const std::string other : {"interleaved", "halves"}) {
    add(fmt::format("rope pairing is {}, the descriptor says {}", other, pairing),
        kept(truth, truth.k, other, truth.rope_theta));
  }
  add(truth.pairs_halves ? "rope turns pairs of neighbours although the weights are in halves order"
                         : "rope turns pairs of halves although the weights are in interleaved order",
      rotate(truth.shape, truth.k, {.theta = truth.rope_theta, .pairs_halves = !truth.pairs_halves}));
  add("K is stored before rotation", truth.k);
  for (const Omission& omission : truth.k_without) {
    add(fmt::format("rows are stored without {}", omission.step),
        kept(truth, omission.rows, pairing, truth.rope_theta));
  }
  std::vector<double> thetas{1e4, 1e5, 5e5, 1e6};
  thetas.push_back(subject.descriptor->identity.rope_theta);
  for (const double theta : thetas) {
    if (theta == truth.rope_theta || !(theta > 1)) continue;
    add(fmt::format("rope theta is {}, the file says {}", theta, truth.rope_theta), as_described(theta));
  }
  for (const int first : {-1, 1}) {
    add(fmt::format("positions count from {}, not from 0", first), as_described(truth.rope_theta, first));
  }
  add_common(subject, true, as_described(truth.rope_theta), out);
  return out;
}

std::vector<Expectation> v_expectations(const Subject& subject) {
  const Layer0& truth = *subject.truth;
  std::vector<Expectation> out;
  out.push_back(
      {"V is rotated like K", as_stored(subject, false, kept(truth, truth.v, "", truth.rope_theta))});
  for (const Omission& omission : truth.v_without) {
    out.push_back(
        {fmt::format("rows are stored without {}", omission.step), as_stored(subject, false, omission.rows)});
  }
  add_common(subject, false, truth.v, out);
  return out;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// With `a` and `b` exchanged everywhere.
std::string exchanged(std::string text, std::string_view a, std::string_view b) {
  replace_all(text, a, "\x01");
  replace_all(text, b, a);
  replace_all(text, "\x01", b);
  return text;
}

// Pools keep their bytes; how many blocks or rows these are depends on the reading.
bool refit(Reading& reading) {
  const Result<kv::Layout> layout = reading.descriptor.layout(0, 0);
  if (!layout.ok()) return false;
  for (kv::RegionMemory& memory : reading.binding.memory) {
    const auto& regions = layout->regions();
    const bool known =
        std::any_of(regions.begin(), regions.end(), [&](const auto& r) { return r.name == memory.region; });
    const std::uint64_t unit = known ? layout->region_bytes(memory.region, 1) : 0;
    if (unit == 0) return false;
    memory.open_extent = memory.bytes / unit;
  }
  return true;
}

class Readings {
 public:
  explicit Readings(const Subject& subject) : subject_(subject) {
    formats();
    orders();
    block_sizes();
  }
  std::vector<Reading> take() { return std::move(out_); }

 private:
  const kv::GroupRepresentation& described() const { return subject_.descriptor->representation.at(0); }

  void add(std::string claim, const std::function<void(kv::GroupRepresentation&)>& change) {
    Reading reading{std::move(claim), *subject_.descriptor, *subject_.binding};
    change(reading.descriptor.representation.at(0));
    if (reading.descriptor.representation[0].layout_text == described().layout_text &&
        reading.descriptor.representation[0].block_tokens == described().block_tokens) {
      return;
    }
    if (refit(reading)) out_.push_back(std::move(reading));
  }

  void formats() {
    std::set<kv::Format> seen;
    bool has_scales = false;
    for (const kv::DecodeForm& form : described().forms) {
      if (seen.insert(form.codes).second) other_formats(form);
      has_scales |= form.operation != kv::DecodeOperation::kPlain;
    }
    if (!has_scales) return;
    add("scale and zero point lie the other way round", [](auto& group) {
      for (const std::string component : {"k", "v"}) {
        group.layout_text = exchanged(group.layout_text, component + ".s:", component + ".z:");
      }
    });
  }

  // Of all components that have this form's codes. Offsets and widths come from the layout alone.
  void other_formats(const kv::DecodeForm& described_form) {
    using kv::Format;
    const Format codes = described_form.codes;
    const std::vector<Format> others = described_form.operation == kv::DecodeOperation::kPlain
                                           ? std::vector{Format::kF32, Format::kF16, Format::kBf16}
                                           : std::vector{Format::kU8, Format::kI8, Format::kU4, Format::kI4};
    for (const Format other : others) {
      if (other == codes) continue;
      add(fmt::format("elements are {}, the descriptor says {}", kv::name(other), kv::name(codes)),
          [&](auto& group) {
            for (const std::string_view component : {"k", "v"}) {
              replace_all(group.layout_text, fmt::format("{}:{}", component, kv::name(codes)),
                          fmt::format("{}:{}", component, kv::name(other)));
            }
          });
    }
  }

  void orders() {
    constexpr std::array<std::array<std::string_view, 2>, 8> kOrders{
        {{"slot head", "head slot"},
         {"tok head", "head tok"},
         {"head dim", "dim head"},
         {"slot dim", "dim slot"},
         {"tok dim", "dim tok"},
         {"tok head dim v", "head dim tok v"},  // Transposed, or not.
         {"~dim%2", "dim%2"},                   // Which element of a byte is in the high nibble;
         {"dim%16 dim/16%2", "dim%32"}}};       // and which two share one.
    for (const auto& [a, b] : kOrders) {
      const bool has_first = described().layout_text.find(a) != std::string::npos;
      add(fmt::format("the order is \"{}\", the descriptor says \"{}\"", has_first ? b : a,
                      has_first ? a : b),
          [&](auto& group) { group.layout_text = exchanged(group.layout_text, a, b); });
    }
  }

  void block_sizes() {
    if (described().block_tokens == 0) return;
    for (const std::uint32_t size : {8u, 16u, 32u, 64u, 128u, 256u}) {
      add(fmt::format("blocks hold {} tokens, the descriptor says {}", size, described().block_tokens),
          [&](auto& group) { group.block_tokens = size; });
    }
  }

  Subject subject_;
  std::vector<Reading> out_;
};

// The best factor s in found ≈ s·expected, and the error that is left.
std::pair<double, double> best_factor(std::span<const float> found, std::span<const float> expected) {
  double product = 0, square = 0;
  for (std::size_t i = 0; i < expected.size() && i < found.size(); ++i) {
    product += static_cast<double>(found[i]) * expected[i];
    square += static_cast<double>(expected[i]) * expected[i];
  }
  const double factor = product / square;
  if (!std::isfinite(factor) || std::abs(factor) < 1e-6) return {factor, kInfinite};
  std::vector<float> scaled(found.begin(), found.end());
  for (float& value : scaled) value = static_cast<float>(value / factor);
  return {factor, relative_error(scaled, expected)};
}

// Searches an explanation of one component; K and V share the readings.
class Search {
 public:
  Search(const Subject& subject, const std::optional<LayerRows>& found, std::vector<Reading> readings)
      : subject_(subject),
        found_(found),
        k_(described_k(subject)),
        v_(described_v(subject)),
        readings_(std::move(readings)) {
    for (const Reading& reading : readings_) {
      auto rows = read_layer(reading.descriptor, reading.binding, 0, {0, subject.truth->shape.tokens});
      reread_.push_back(rows.ok() ? std::optional(*std::move(rows)) : std::nullopt);
    }
  }

  // "" if nothing explains it.
  std::string explain(bool key) const {
    const std::vector<float>& expected = key ? k_ : v_;
    if (found_) {
      const std::vector<float>& rows = key ? found_->k : found_->v;
      if (fits(!key, relative_error(rows, key ? v_ : k_))) return key ? "it holds V" : "it holds K";
      for (const Expectation& other : key ? k_expectations(subject_) : v_expectations(subject_)) {
        if (fits(key, relative_error(rows, other.rows))) return other.claim;
      }
      const auto [factor, error] = best_factor(rows, expected);
      if (fits(key, error)) return fmt::format("values are {:.4g} times what they should be", factor);
    }
    for (std::size_t i = 0; i < readings_.size(); ++i) {
      if (reread_[i] && fits(key, relative_error(key ? reread_[i]->k : reread_[i]->v, expected)))
        return readings_[i].claim;
    }
    return "";
  }

 private:
  bool fits(bool key, double error) const {
    return error <= (key ? subject_.tolerance.k : subject_.tolerance.v);
  }

  Subject subject_;
  const std::optional<LayerRows>& found_;
  std::vector<float> k_, v_;
  std::vector<Reading> readings_;
  std::vector<std::optional<LayerRows>> reread_;
};

std::string say(bool key, double error, double tolerance, const std::string& claim) {
  return fmt::format("{} of layer 0 is off by {:.3g} (tolerance {:.3g}): {}", key ? "K" : "V", error,
                     tolerance, claim.empty() ? "no known mistake explains it" : claim);
}

}  // namespace

Judgement judge(const Subject& subject) {
  Judgement judgement{.k_error = kInfinite, .v_error = kInfinite, .surprise = {}};
  const auto read = read_layer(*subject.descriptor, *subject.binding, 0, {0, subject.truth->shape.tokens});
  std::optional<LayerRows> found;
  if (read.ok()) {
    found = *read;
    judgement.k_error = relative_error(found->k, described_k(subject));
    judgement.v_error = relative_error(found->v, described_v(subject));
  }
  const bool k_fits = judgement.k_error <= subject.tolerance.k;
  const bool v_fits = judgement.v_error <= subject.tolerance.v;
  if (k_fits && v_fits) return judgement;
  const Search search(subject, found, Readings(subject).take());
  const std::string k_claim = k_fits ? "" : search.explain(true),
                    v_claim = v_fits ? "" : search.explain(false);
  if (!read.ok()) judgement.surprise = "it cannot be read as described (" + read.error().detail + "); ";
  if (k_claim == "it holds V" && v_claim == "it holds K") {
    judgement.surprise += fmt::format("K and V are swapped in layer 0 (off by {:.3g} and {:.3g})",
                                      judgement.k_error, judgement.v_error);
  } else if (!k_fits && k_claim == v_claim) {
    judgement.surprise += say(true, judgement.k_error, subject.tolerance.k, k_claim) + "; the same for V";
  } else {
    if (!k_fits) judgement.surprise += say(true, judgement.k_error, subject.tolerance.k, k_claim);
    if (!k_fits && !v_fits) judgement.surprise += "; ";
    if (!v_fits) judgement.surprise += say(false, judgement.v_error, subject.tolerance.v, v_claim);
  }
  return judgement;
}

}  // namespace isthmus::engine
