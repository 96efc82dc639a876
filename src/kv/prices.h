// SPDX-License-Identifier: Apache-2.0
// A snapshot of what steps cost now, in whole numbers, so that both ends choose alike from it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/digest.h"
#include "base/status.h"

namespace isthmus::kv {

// Where a step can run. By name: "beside", "consumer", "producer".
enum class Place : std::uint8_t { kBeside, kConsumer, kProducer };
std::string_view name(Place place);

// Rates are bytes a microsecond; 0 is a step that can't run there.
struct ConversionRate {
  // Numbers without the component's name, as DecodeForm::text() has them behind it: "codes=f16 op=q". "any"
  // stands for all that no other entry of the place names.
  std::string from, to;
  std::uint64_t rate = 0;  // Of bytes that are read.
  friend auto operator<=>(const ConversionRate&, const ConversionRate&) = default;
};

// Of a body whose numbers have such codes, under the codec of spec/wire-form.md §11.
struct CodecRate {
  std::string codes;                     // A format's name; "any" for those that no other entry names.
  std::uint64_t encode = 0, decode = 0;  // Of bytes as they are without it; at either place.
  std::uint32_t stored = 0;              // Thousandths of them that are left; below 1,000.
  friend auto operator<=>(const CodecRate&, const CodecRate&) = default;
};

struct PlaceRates {
  std::uint32_t busy = 0;    // Thousandths that other work takes; below 1,000.
  std::uint64_t layout = 0;  // Rewriting a storage's layout to wire rows, or back.
  std::uint64_t digest = 0;
  std::vector<ConversionRate> conversions;
  friend bool operator==(const PlaceRates&, const PlaceRates&) = default;
};

// "Beside" is a process at the producer's end of the link that the bytes can be led through: it takes the
// source's numbers by `hop` and sends its own on by the link.
struct Prices {
  std::uint64_t tokens = 0;  // That move: the range's.
  std::uint64_t link = 0;    // Between the ends.
  std::uint64_t hop = 0;     // To what lies beside the transport; 0 if nothing does.
  PlaceRates producer, beside, consumer;
  std::vector<CodecRate> codecs;  // None: bodies cross as they are.

  // One fact a line, words separated by one blank:
  //   isthmus-prices 1
  //   tokens N / link N / hop N                              each on a line of its own
  //   PLACE busy N layout N digest N                         beside, consumer, producer
  //   convert PLACE RATE FROM > TO                           sorted
  //   codec CODES encode N decode N stored N                 sorted
  std::string text() const;
  // Of the text.
  Digest128 digest() const;
  // Reads text() and nothing else: a snapshot has one text. Errors: malformed, naming the line; exhausted
  // (more than 256 conversions and codecs, numbers above 2^40).
  static Result<Prices> parse(std::string_view text);
  // Of one thread of the reference machine of docs/performance.md, and a link of 10 Gbit/s; nothing beside.
  static Prices reference(std::uint64_t tokens);
  const PlaceRates& at(Place place) const {
    return place == Place::kProducer ? producer : place == Place::kConsumer ? consumer : beside;
  }
  friend bool operator==(const Prices&, const Prices&) = default;
};

}  // namespace isthmus::kv
