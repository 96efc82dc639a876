// SPDX-License-Identifier: Apache-2.0
// Figures of many prompts: means with their confidence intervals, a verdict, and the record that stays of
// them.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "kv/descriptor.h"
#include "kv/negotiate.h"
#include "qualify/measure.h"

namespace isthmus::qualify {

// A mean over prompts, and where it lies with 95 % confidence: percentiles of means of prompts drawn anew
// (bootstrap, 2,000 draws of a fixed seed). Prompts differ much in what engines differ by, and not normally.
struct Estimate {
  double mean = 0, low = 0, high = 0;
};

// `figure` of each of `prompts` (not empty).
Estimate estimate(std::span<const Measured> prompts, const std::function<double(const Measured&)>& figure);

// Of one end of a comparison with the decoder alone.
struct Side {
  Estimate kl, first_kl, agreement;
  Estimate perplexity_ratio;  // Of the decoder's answer, against what it has for the decoder alone.
};

struct Summary {
  std::size_t prompts = 0;
  double perplexity_alone = 0;  // Of the decoder's answers for itself.
  Side pair, engines;
  // Mean KL of the pair in units of the engines': at most kv::Qualification's bar, or the record covers
  // nothing. 1e9: the engines alone don't differ, the pair does.
  Estimate ratio;
  bool is_within_bar = false;
};

Summary summarise(std::span<const Measured> prompts);

// The record (spec/qualification.md): what it covers, and what was measured. Its recipes name no instruction
// set, so that it covers each.
kv::Qualification record_of(const kv::Descriptor& source, const kv::Descriptor& target, double kl_pair,
                            double kl_engines, std::size_t prompts);
// One list entry of a record file.
std::string record_text(const kv::Qualification& record);

}  // namespace isthmus::qualify
