// SPDX-License-Identifier: Apache-2.0
// The text of a snapshot: one for each, so that its digest names it.
#include "kv/prices.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "kv/format.h"

namespace isthmus::kv {
namespace {

constexpr std::size_t kRatesMax = 256;
constexpr std::uint64_t kNumberMax = std::uint64_t{1} << 40;
constexpr std::string_view kHead = "isthmus-prices 1";
constexpr std::array<Place, 3> kPlaces{Place::kBeside, Place::kConsumer, Place::kProducer};

PlaceRates& rates_of(Prices& prices, Place place) {
  return place == Place::kProducer   ? prices.producer
         : place == Place::kConsumer ? prices.consumer
                                     : prices.beside;
}

// Takes a text apart line by line; the first error stays.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool at_end() const { return text_.empty(); }
  std::size_t line_number() const { return number_; }
  Result<std::string_view> line() {
    const std::size_t end = text_.find('\n');
    ++number_;
    if (end == std::string_view::npos) return wrong("no end of line");
    const std::string_view line = text_.substr(0, end);
    text_.remove_prefix(end + 1);
    return line;
  }
  Error wrong(std::string_view why) const {
    return {Code::kMalformed, fmt::format("prices, line {}: {}", number_, why)};
  }
  // The number behind `word` and a blank at the rest's start.
  Result<std::uint64_t> number(std::string_view& rest, std::string_view word) const {
    if (!rest.starts_with(word)) return wrong(fmt::format("\"{}\" is expected", word));
    rest.remove_prefix(word.size());
    std::uint64_t value = 0;
    const auto [at, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc()) return wrong(fmt::format("a number is expected behind \"{}\"", word));
    rest.remove_prefix(static_cast<std::size_t>(at - rest.data()));
    if (value > kNumberMax)
      return Error{Code::kExhausted,
                   fmt::format("prices, line {}: {} is above {}", number_, value, kNumberMax)};
    return value;
  }

 private:
  std::string_view text_;
  std::size_t number_ = 0;
};

Status read_place(Reader& reader, Place place, PlaceRates& rates) {
  ISTHMUS_TRY(std::string_view rest, reader.line());
  ISTHMUS_TRY(const std::uint64_t busy, reader.number(rest, fmt::format("{} busy ", name(place))));
  if (busy >= 1000) return reader.wrong("busy is below 1000");
  rates.busy = static_cast<std::uint32_t>(busy);
  ISTHMUS_TRY(rates.layout, reader.number(rest, " layout "));
  ISTHMUS_TRY(rates.digest, reader.number(rest, " digest "));
  return {};
}

Status read_codec(Reader& reader, std::string_view rest, Prices& prices) {
  CodecRate rate;
  const std::size_t blank = std::min(rest.find(' '), rest.size());
  rate.codes = std::string(rest.substr(0, blank));
  if (rate.codes != "any" && !parse_format(rate.codes).ok())
    return reader.wrong(fmt::format("codec: '{:.32}' is no format", rate.codes));
  rest.remove_prefix(blank);
  ISTHMUS_TRY(rate.encode, reader.number(rest, " encode "));
  ISTHMUS_TRY(rate.decode, reader.number(rest, " decode "));
  ISTHMUS_TRY(const std::uint64_t stored, reader.number(rest, " stored "));
  if (stored >= 1000) return reader.wrong("stored is below 1000");
  rate.stored = static_cast<std::uint32_t>(stored);
  prices.codecs.push_back(std::move(rate));
  return {};
}

Status read_rate(Reader& reader, Prices& prices) {
  ISTHMUS_TRY(std::string_view rest, reader.line());
  constexpr std::string_view kCodec = "codec ";
  if (rest.starts_with(kCodec)) return read_codec(reader, rest.substr(kCodec.size()), prices);
  for (const Place place : kPlaces) {
    const std::string start = fmt::format("convert {} ", name(place));
    if (!rest.starts_with(start)) continue;
    ISTHMUS_TRY(const std::uint64_t rate, reader.number(rest, start));
    const std::size_t arrow = rest.find(" > ");
    if (!rest.starts_with(' ') || arrow == std::string_view::npos || arrow < 2)
      return reader.wrong("\"FROM > TO\" is expected");
    rates_of(prices, place)
        .conversions.push_back(
            {std::string(rest.substr(1, arrow - 1)), std::string(rest.substr(arrow + 3)), rate});
    return {};
  }
  return reader.wrong("a conversion's place or a codec is expected");
}

}  // namespace

std::string_view name(Place place) {
  constexpr std::array<std::string_view, 3> kNames{"beside", "consumer", "producer"};
  return kNames.at(static_cast<std::size_t>(place));
}

std::string Prices::text() const {
  std::string out = fmt::format("{}\ntokens {}\nlink {}\nhop {}\n", kHead, tokens, link, hop);
  for (const Place place : kPlaces) {
    const PlaceRates& rates = at(place);
    out +=
        fmt::format("{} busy {} layout {} digest {}\n", name(place), rates.busy, rates.layout, rates.digest);
  }
  for (const Place place : kPlaces) {
    std::vector<ConversionRate> sorted = at(place).conversions;
    std::sort(sorted.begin(), sorted.end());
    for (const ConversionRate& one : sorted)
      out += fmt::format("convert {} {} {} > {}\n", name(place), one.rate, one.from, one.to);
  }
  std::vector<CodecRate> sorted = codecs;
  std::sort(sorted.begin(), sorted.end());
  for (const CodecRate& one : sorted)
    out += fmt::format("codec {} encode {} decode {} stored {}\n", one.codes, one.encode, one.decode,
                       one.stored);
  return out;
}

Digest128 Prices::digest() const {
  return digest128(text());
}

Result<Prices> Prices::parse(std::string_view text) {
  Reader reader(text);
  ISTHMUS_TRY(const std::string_view head, reader.line());
  if (head != kHead) return reader.wrong(fmt::format("\"{}\" is expected", kHead));
  Prices prices;
  for (const auto& [word, field] : {std::pair<std::string_view, std::uint64_t*>{"tokens ", &prices.tokens},
                                    {"link ", &prices.link},
                                    {"hop ", &prices.hop}}) {
    ISTHMUS_TRY(std::string_view rest, reader.line());
    ISTHMUS_TRY(*field, reader.number(rest, word));
  }
  for (const Place place : kPlaces) ISTHMUS_TRY(read_place(reader, place, rates_of(prices, place)));
  while (!reader.at_end()) {
    if (reader.line_number() >= kRatesMax + 7)
      return Error{Code::kExhausted, fmt::format("prices: more than {} conversions and codecs", kRatesMax)};
    ISTHMUS_TRY(read_rate(reader, prices));
  }
  // Leading zeros, another order, what is left of a line: not the one text.
  if (prices.text() != text) return Error{Code::kMalformed, "prices: not as they are written"};
  return prices;
}

Prices Prices::reference(std::uint64_t tokens) {
  Prices prices;
  prices.tokens = tokens;
  prices.link = 1250;
  prices.producer = {.layout = 6000, .digest = 15000, .conversions = {{"any", "any", 2000}}};
  prices.consumer = prices.producer;
  return prices;
}

}  // namespace isthmus::kv
