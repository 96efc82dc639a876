// SPDX-License-Identifier: Apache-2.0
// Splicing leaves every byte alone that it isn't asked to change, and refuses what isn't JSON.
#include "router/shell/json_text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "http/json.h"

namespace isthmus::router::shell {
namespace {

using ::testing::HasSubstr;

std::string edit(std::string_view text, std::vector<JsonEdit> edits) {
  const auto object = JsonObjectText::scan(text);
  return object.ok() ? edited(*object, edits) : object.error().text();
}

TEST(JsonText, SetsAMemberAtTheEndOrInItsPlace) {
  struct Case {
    std::string_view name, text, expected;
  };
  const std::vector<Case> cases = {
      {"empty object", "{}", R"({"x":7})"},
      {"empty object with space", " { } ", R"( {"x":7} )"},
      {"append", R"({"a":1})", R"({"a":1,"x":7})"},
      {"append before trailing space", "{\n  \"a\": 1\n}\n", "{\n  \"a\": 1,\"x\":7\n}\n"},
      {"replace first", R"({"x":1,"a":2})", R"({"x":7,"a":2})"},
      {"replace keeps white space", "{ \"a\" : 1 , \"x\"  :  {\"y\":[1, 2]}  , \"b\":2 }",
       "{ \"a\" : 1 , \"x\"  :  7  , \"b\":2 }"},
      {"nested member of that name stays", R"({"a":{"x":1}})", R"({"a":{"x":1},"x":7})"},
      {"text that looks like it stays", R"({"a":"\"x\":1,}"})", R"({"a":"\"x\":1,}","x":7})"},
      {"escaped key is the same key", R"({"\u0078":1})", R"({"\u0078":7})"},
      {"twins: the last is set, others go", R"({"x":1,"a":2,"x":3,"b":4})", R"({"a":2,"x":7,"b":4})"},
      {"twins at the end", R"({"x":1,"x":2})", R"({"x":7})"},
      {"unusual numbers and unicode stay", "{\"a\":1.50e+02,\"b\":\"\xc3\xa4\\u00e4\"}",
       "{\"a\":1.50e+02,\"b\":\"\xc3\xa4\\u00e4\",\"x\":7}"},
  };
  for (const Case& c : cases) EXPECT_EQ(edit(c.text, {{"x", "7"}}), c.expected) << c.name;
}

TEST(JsonText, RemovesAMemberWithItsComma) {
  EXPECT_EQ(edit(R"({"x":1})", {{"x", {}}}), "{}");
  EXPECT_EQ(edit(R"({"x":1,"a":2})", {{"x", {}}}), R"({"a":2})");
  EXPECT_EQ(edit(R"({"a":2,"x":{"b":[]}})", {{"x", {}}}), R"({"a":2})");
  EXPECT_EQ(edit(R"({"a":2, "x":1, "b":3})", {{"x", {}}}), R"({"a":2, "b":3})");
  EXPECT_EQ(edit(R"({"x":1,"x":2})", {{"x", {}}, {"y", "1"}}), R"({"y":1})");
  EXPECT_EQ(edit(R"({"a":1})", {{"x", {}}}), R"({"a":1})");
}

TEST(JsonText, ReadsMembersByKind) {
  const std::string text =
      R"({"s":"a\n\"\u00e4\ud83d\ude00","t":true,"n":42,"m":-1,"d":1.5,"z":null,"o":{"k": [1]}})";
  const auto object = JsonObjectText::scan(text);
  ASSERT_TRUE(object.ok());
  EXPECT_EQ(object->as_string("s"), "a\n\"\xc3\xa4\xf0\x9f\x98\x80");
  EXPECT_EQ(object->as_bool("t"), true);
  EXPECT_EQ(object->as_uint("n"), 42u);
  EXPECT_EQ(object->as_uint("m"), std::nullopt);
  EXPECT_EQ(object->as_uint("d"), std::nullopt);
  EXPECT_EQ(object->as_string("n"), std::nullopt);
  EXPECT_EQ(object->as_string("absent"), std::nullopt);
  EXPECT_EQ(object->raw("o"), R"({"k": [1]})");
}

TEST(JsonText, RefusesWhatIsNotJsonWithTheOffset) {
  const std::vector<std::string_view> bad = {
      "",
      "{",
      "{\"a\"}",
      "{\"a\":}",
      "{\"a\":1,}",
      "{\"a\":1 \"b\":2}",
      "{,}",
      "{a:1}",
      "{'a':1}",
      "{\"a\":01}",
      "{\"a\":1.}",
      "{\"a\":-}",
      "{\"a\":+1}",
      "{\"a\":NaN}",
      "{\"a\":tru}",
      "{\"a\":\"\\x\"}",
      "{\"a\":\"\\u12g4\"}",
      "{\"a\":\"\n\"}",
      "{\"a\":\"}",
      "{\"a\":[1,]}",
      "{\"a\":[1}",
      "{} x",
      "{}{}",
      "{\"a\":1}]",
      "{\"a\":.5}",
      "{\"a\":1e}",
  };
  for (const std::string_view text : bad) {
    const auto object = JsonObjectText::scan(text);
    ASSERT_FALSE(object.ok()) << text;
    EXPECT_EQ(object.code(), Code::kMalformed) << text;
    EXPECT_THAT(object.error().detail, HasSubstr("at byte")) << text;
  }
  EXPECT_EQ(JsonObjectText::scan("[1]").code(), Code::kInvalidArgument);
  EXPECT_EQ(JsonObjectText::scan("\"x\"").code(), Code::kInvalidArgument);
}

TEST(JsonText, BoundsNesting) {
  const auto nested = [](std::size_t levels) {
    return "{\"a\":" + std::string(levels, '[') + std::string(levels, ']') + "}";
  };
  EXPECT_TRUE(JsonObjectText::scan(nested(JsonObjectText::kDepthMax - 1)).ok());
  EXPECT_EQ(JsonObjectText::scan(nested(JsonObjectText::kDepthMax)).code(), Code::kMalformed);
  EXPECT_FALSE(JsonObjectText::scan(nested(1'000'000)).ok());
}

TEST(JsonText, SurvivesEveryCutAndEveryChangedByte) {
  const std::string good = R"( {"a" : [1, -2.5e3, {"b":"\u00e4\\"}], "x":null, "c":true } )";
  for (std::size_t i = 0; i < good.size(); ++i) {
    (void)JsonObjectText::scan(good.substr(0, i));
    for (int c = 0; c < 256; ++c) {
      std::string changed = good;
      changed[i] = static_cast<char>(c);
      const auto object = JsonObjectText::scan(changed);
      if (object.ok()) (void)edited(*object, std::vector<JsonEdit>{{"x", "7"}});
    }
  }
}

// Random objects, written with random white space.
std::string random_space() {
  return *rc::gen::element<std::string>("", " ", "\n  ", "\t");
}
json::Value random_value(int depth) {
  const int kind = *rc::gen::inRange(0, depth > 2 ? 4 : 6);
  if (kind == 0) return *rc::gen::arbitrary<std::int64_t>();
  if (kind == 1) return *rc::gen::string<std::string>();
  if (kind == 2) return *rc::gen::arbitrary<bool>();
  if (kind == 3) return nullptr;
  json::Value value;
  const int count = *rc::gen::inRange(0, 4);
  for (int i = 0; i < count; ++i) {
    if (kind == 4) value.push(random_value(depth + 1));
    if (kind == 5) value.set(*rc::gen::element<std::string>("x", "a", "\"", "b c"), random_value(depth + 1));
  }
  return value;
}

RC_GTEST_PROP(JsonTextProperty, EditingIsSettingAMemberOfTheParsedValue, ()) {
  json::Value expected = json::Object{};
  std::string text = "{";
  const int count = *rc::gen::inRange(0, 6);
  for (int i = 0; i < count; ++i) {
    const auto key = *rc::gen::element<std::string>("x", "y", "z", "k\"1", "k2");
    if (expected.member(key) != nullptr) continue;
    const json::Value value = random_value(0);
    if (text.size() > 1) text += ",";
    text += random_space() + json::Value(key).dump() + random_space() + ":" + random_space() + value.dump() +
            random_space();
    expected.set(key, json::parse(value.dump()).value());
  }
  text += "}" + random_space();
  const auto object = JsonObjectText::scan(text);
  RC_ASSERT(object.ok());
  RC_ASSERT(edited(*object, {}) == text);
  const std::string result = edited(*object, std::vector<JsonEdit>{{"x", R"({"n":1})"}, {"y", {}}});
  expected.set("x", json::object({{"n", 1}}));
  expected.erase("y");
  const auto parsed = json::parse(result);
  RC_ASSERT(parsed.ok());
  RC_ASSERT(*parsed == expected);
}

}  // namespace
}  // namespace isthmus::router::shell
