// SPDX-License-Identifier: Apache-2.0
#include "http/json.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cmath>
#include <limits>

namespace isthmus::json {
namespace {

std::string why(std::string_view text, const Limits& limits = {}) {
  const Result<Value> parsed = parse(text, limits);
  EXPECT_FALSE(parsed.ok()) << text;
  EXPECT_EQ(parsed.code(), Code::kMalformed);
  return parsed.ok() ? "" : parsed.error().detail;
}

TEST(Json, KeepsMemberOrderAndKinds) {
  const std::string text = R"({"z":1,"a":[true,null,-2,1.5,"x"],"m":{"b":{},"a":[]},"one":1.0})";
  const Result<Value> value = parse(text);
  ASSERT_TRUE(value.ok()) << value.error().detail;
  EXPECT_EQ(value->dump(), text);
}

TEST(Json, IntegersStayExactOverBothRanges) {
  for (const char* text : {"9223372036854775807", "-9223372036854775808", "18446744073709551615", "0", "-1",
                           "9007199254740993"}) {
    EXPECT_EQ(parse(text)->dump(), text);
  }
  EXPECT_EQ(parse("9223372036854775807")->as_int(), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(parse("18446744073709551615")->as_uint(), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(parse("18446744073709551615")->as_int(), std::nullopt);
  EXPECT_EQ(parse("-1")->as_uint(), std::nullopt);
  EXPECT_EQ(parse("16.0")->as_int(), 16);
  EXPECT_EQ(parse("16.5")->as_int(), std::nullopt);
  EXPECT_EQ(Value(std::uint64_t{7}), Value(7));
}

TEST(Json, DoublesAreTheNearestOfTheirText) {
  EXPECT_EQ(parse("0.7")->as_double(), 0.7);
  EXPECT_EQ(parse("[0.1,1e-7]")->find("0")->as_double(), 0.1);
  EXPECT_EQ(parse("1e-400")->as_double(), 0.0);
  EXPECT_EQ(parse("123456789012345678901234567890")->as_double(), 123456789012345678901234567890.0);
  EXPECT_NE(why("1e400").find("range"), std::string::npos);
  EXPECT_EQ(Value(std::nan("")).dump(), "null");
}

TEST(Json, ErrorsSayWhereAndWhat) {
  EXPECT_EQ(why(""), "JSON: empty text at byte 0");
  EXPECT_EQ(why(R"({"a":1)"), "JSON: text ends too early at byte 6");
  EXPECT_EQ(why(R"({"a":1}x)"), "JSON: more after the value at byte 7");
  EXPECT_EQ(why(R"({"a":tru})"), "JSON: syntax error at byte 5");
  EXPECT_NE(why(R"({"a":1,"b":2,"a":3})").find("member 'a' occurs twice"), std::string::npos);
  EXPECT_NE(why("\"\xff\"").find("at byte"), std::string::npos);
  EXPECT_NE(why("nan").find("syntax"), std::string::npos);
  EXPECT_NE(why("[1,]").find("syntax"), std::string::npos);
  EXPECT_NE(why("01").find("at byte"), std::string::npos);
}

TEST(Json, LimitsBoundDepthBytesAndValues) {
  EXPECT_TRUE(parse(std::string(32, '[') + std::string(32, ']')).ok());
  EXPECT_NE(why(std::string(33, '[') + std::string(33, ']')).find("nested deeper than 32"),
            std::string::npos);
  EXPECT_NE(why(std::string(1'000'000, '[')).find("nested deeper"), std::string::npos);
  EXPECT_NE(why("[1,2,3]", {.values_max = 3}).find("too many values"), std::string::npos);
  EXPECT_NE(why("[1,2,3]", {.bytes_max = 6}).find("7 bytes"), std::string::npos);
}

TEST(Json, StringsAreEscapedAndRepaired) {
  EXPECT_EQ(Value("a\"\\\n\t\r\x01\x7f é").dump(), "\"a\\\"\\\\\\n\\t\\r\\u0001\x7f é\"");
  EXPECT_EQ(Value("\xe2\x82").dump(), "\"\xef\xbf\xbd\xef\xbf\xbd\"");
  EXPECT_EQ(Value("\xed\xa0\x80").dump().size(), 2 + 3 * 3);  // A surrogate isn't UTF-8.
  EXPECT_EQ(*parse(R"("\u00e9\ud83d\ude00\n\/")")->as_string(), "é😀\n/");
}

TEST(Json, FindFollowsNamesAndIndices) {
  const Value value = *parse(R"({"choices":[{"text":"a"},{"text":"b"}],"x.y":1})");
  EXPECT_EQ(*value.find("choices.1.text")->as_string(), "b");
  EXPECT_EQ(value.find("choices.2.text"), nullptr);
  EXPECT_EQ(value.find("choices.-1"), nullptr);
  EXPECT_EQ(value.find("choices.0.text.z"), nullptr);
  EXPECT_EQ(value.find("x.y"), nullptr);
  EXPECT_NE(value.member("x.y"), nullptr);
}

TEST(Json, TypedReadsNameTheField) {
  const Value value = *parse(R"({"n":3,"s":"x","nothing":null,"neg":-4})");
  EXPECT_EQ(value.get<std::int64_t>("n")->value(), 3);
  EXPECT_EQ(value.get<double>("n")->value(), 3.0);
  EXPECT_FALSE(value.get<bool>("absent")->has_value());
  EXPECT_FALSE(value.get<std::string>("nothing")->has_value());
  EXPECT_EQ(value.get<std::int64_t>("s").error().detail, "'s' must be an integer, not a string");
  EXPECT_EQ(value.get<std::uint64_t>("neg").error().detail, "'neg' must be a non-negative integer, not -4");
  EXPECT_EQ(value.require<std::string>("absent").error().detail, "'absent' is required");
  EXPECT_EQ(value.require<std::string>("s").value(), "x");
}

TEST(Json, BuildsAndChanges) {
  Value value = object({{"a", 1}, {"b", array({1, "two", 3.5, nullptr})}});
  value.set("a", "new");
  value.set("c", array_of(std::vector<int>{1, 2}));
  value.set("d", Value()).set("inner", true);
  value.find("b")->push(false);
  EXPECT_TRUE(value.erase("zz") == false && value.erase("c"));
  EXPECT_EQ(value.dump(), R"({"a":"new","b":[1,"two",3.5,null,false],"d":{"inner":true}})");
}

rc::Gen<Value> any_value(int depth) {
  auto leaf = rc::gen::oneOf(
      rc::gen::map(rc::gen::arbitrary<std::int64_t>(), [](std::int64_t v) { return Value(v); }),
      rc::gen::map(rc::gen::arbitrary<std::uint64_t>(), [](std::uint64_t v) { return Value(v); }),
      rc::gen::map(rc::gen::arbitrary<bool>(), [](bool v) { return Value(v); }),
      rc::gen::map(rc::gen::arbitrary<double>(), [](double v) { return Value(std::isfinite(v) ? v : 0.5); }),
      rc::gen::map(rc::gen::container<std::string>(rc::gen::inRange<char>(0, 127)),
                   [](std::string v) { return Value(v); }),
      rc::gen::just(Value()));
  if (depth == 0) return leaf;
  return rc::gen::oneOf(leaf, rc::gen::map(rc::gen::container<Array>(any_value(depth - 1)), [](Array items) {
                          Value object;
                          for (std::size_t i = 0; i < items.size(); ++i)
                            object.set("k" + std::to_string(i), items[i]);
                          return array({Value(std::move(items)), object});
                        }));
}

RC_GTEST_PROP(Json, ParseOfDumpIsTheSame, ()) {
  const Value value = *any_value(2);
  const Result<Value> back = parse(value.dump());
  RC_ASSERT(back.ok());
  RC_ASSERT(*back == value);
}

}  // namespace
}  // namespace isthmus::json
