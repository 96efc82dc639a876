// SPDX-License-Identifier: Apache-2.0
// One line of a bench: what was measured, against what in the same run, and whether the bar is met.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::bench {

// The bar is a limit on value / reference.
struct Bar {
  enum class Kind : std::uint8_t { kAtLeast, kAtMost } kind = Kind::kAtLeast;
  double limit = 0;
  std::string text() const;  // ">= 0.8"
};

// Of repetitions in one run.
struct Summary {
  std::uint32_t runs = 0;
  double median = 0, min = 0, max = 0;
};
// The median of an even number is the mean of the middle two. Empty samples give nothing.
std::optional<Summary> summarise(std::vector<double> samples);

// Each member has a default, so that a designated initializer may leave it out without a warning.
struct Record {
  std::string bench, name, unit;
  std::optional<Summary> value = {};
  std::string reference = {};  // What the reference is; "" for none.
  std::optional<Summary> reference_value = {};
  std::optional<Bar> bar = {};
  std::string failure = {};  // Why there's no value: the bench failed.
  std::string not_run = {};  // Why there's no reference, or no value: what it needs isn't here.
  std::string note = {};     // For the table: "binds: place".

  std::optional<double> ratio() const;
  // Nothing without a bar, or for what was not run. A bench that failed is not ok.
  std::optional<bool> ok() const;
};

// One JSON object without newline: bench, case, value, unit, reference, reference_value, ratio, bar, ok,
// runs, min, max. What doesn't apply is null; `reference` says why ("not run: …", "failed: …").
std::string to_json(const Record& record);
// For people; ends with a newline.
std::string to_table(const std::vector<Record>& records);
// A bar that was missed, or a failure.
bool is_any_missed(const std::vector<Record>& records);

}  // namespace isthmus::bench
