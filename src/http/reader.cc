// SPDX-License-Identifier: Apache-2.0
// Messages through Beast's incremental parser.
#include "http/reader.h"

#include <fmt/format.h>

#include <boost/beast/http/basic_parser.hpp>

namespace isthmus::http {
namespace {

namespace beast = boost::beast;
using beast::error_code;
using Text = beast::string_view;

template <bool kIsRequest>
class BeastReader final : public Reader, private beast::http::basic_parser<kIsRequest> {
  using Parser = beast::http::basic_parser<kIsRequest>;

 public:
  BeastReader(const ReaderLimits& limits, bool is_body_absent) : limits_(limits) {
    this->header_limit(static_cast<std::uint32_t>(limits.header_bytes_max));
    if (limits.body_bytes_max) {
      this->body_limit(*limits.body_bytes_max);
    } else {
      this->body_limit(boost::none);
    }
    this->eager(true);
    if (is_body_absent) this->skip(true);
  }

  Status feed(std::string& in) override {
    ISTHMUS_CHECK(!done());
    std::size_t used = 0;
    error_code error;
    while (used < in.size() && !done() && !error) {
      begun_ = true;
      used += this->put(boost::asio::buffer(in.data() + used, in.size() - used), error);
    }
    in.erase(0, used);
    // What it waits to see whole is a head, a chunk's head or trailers; Beast bounds only the first of them.
    if (error == beast::http::error::need_more && in.size() > limits_.header_bytes_max) {
      error = beast::http::error::header_limit;
    }
    return error && error != beast::http::error::need_more ? Status(fault(error)) : ok_status();
  }

  Status end() override {
    error_code error;
    if (begun_) this->put_eof(error);
    return !begun_ || error ? Status(Error{Code::kMalformed, "HTTP: the message ends too early"})
                            : ok_status();
  }

  bool has_head() const override { return this->is_header_done(); }
  bool done() const override { return this->is_done(); }
  bool keep_alive() const override { return Parser::keep_alive(); }

 private:
  Error fault(const error_code& error) {
    status = error == beast::http::error::body_limit     ? 413
             : error == beast::http::error::header_limit ? 431
                                                         : 400;
    if (status == 413) {
      return {Code::kExhausted,
              fmt::format("HTTP: body longer than {} bytes", limits_.body_bytes_max.value_or(0))};
    }
    if (status == 431) {
      return {Code::kExhausted, fmt::format("HTTP: head longer than {} bytes", limits_.header_bytes_max)};
    }
    return {Code::kMalformed, fmt::format("HTTP: {}", error.message())};
  }

  void on_request_impl(beast::http::verb, Text method_text, Text target_text, int version,
                       error_code&) override {
    method = std::string(method_text);
    target = std::string(target_text);
    is_version_1_0 = version == 10;
  }
  void on_response_impl(int code, Text, int version, error_code&) override {
    status = code;
    is_version_1_0 = version == 10;
  }
  void on_field_impl(beast::http::field, Text name, Text value, error_code&) override {
    if (is_head_read_) return;  // A trailer: nobody asked for one.
    headers.emplace_back(std::string(name), std::string(value));
  }
  void on_header_impl(error_code&) override { is_head_read_ = true; }
  void on_body_init_impl(const boost::optional<std::uint64_t>&, error_code&) override {}
  std::size_t on_body_impl(Text piece, error_code&) override { return append(piece); }
  void on_chunk_header_impl(std::uint64_t, Text, error_code&) override {}
  std::size_t on_chunk_body_impl(std::uint64_t, Text piece, error_code&) override { return append(piece); }
  void on_finish_impl(error_code&) override {}

  std::size_t append(Text piece) {
    body.append(piece.data(), piece.size());
    return piece.size();
  }

  ReaderLimits limits_;
  bool is_head_read_ = false;
};

}  // namespace

std::unique_ptr<Reader> make_request_reader(const ReaderLimits& limits) {
  return std::make_unique<BeastReader<true>>(limits, false);
}
std::unique_ptr<Reader> make_response_reader(const ReaderLimits& limits, bool is_body_absent) {
  return std::make_unique<BeastReader<false>>(limits, is_body_absent);
}

}  // namespace isthmus::http
