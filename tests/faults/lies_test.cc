// SPDX-License-Identifier: Apache-2.0
// States, tickets and peers that aren't what they say: each is refused before a token is drawn from it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <utility>
#include <vector>

#include "faults/duo.h"
#include "kv/catalogue.h"
#include "support/tcp_relay.h"

namespace isthmus::faults {
namespace {

using support::Direction;
using support::Passage;
using support::RelayedFrame;
using support::TcpRelay;
using testing::AnyOf;
using testing::HasSubstr;
using testing::StartsWith;
using transport::FrameType;

constexpr std::size_t kTokens = 8;

json::Value through(const TcpRelay& relay, json::Value transfer) {
  transfer.set("isthmus_endpoints", json::array({relay.endpoint().text()}));
  return transfer;
}

double failures(Duo& duo) {
  return Duo::count(duo.d(), "isthmus_handoff_failures_total");
}

// The same transfer object twice isn't possible: each ask has a prefill of its own.
void expect_refused(Duo& duo, const std::string& prompt, const std::function<json::Value(json::Value)>& spoil,
                    const testing::Matcher<std::string>& why) {
  const double before = failures(duo);
  const auto failing = duo.ask_decode(prompt, spoil(duo.prefill(prompt, "fails")), kTokens, {.fail = true});
  const Answer& refused = duo.finish(*failing);
  EXPECT_GE(refused.status, 400);
  EXPECT_THAT(refused.error(), why) << refused.body;
  EXPECT_EQ(refused.text(), "") << "a token of a state in doubt";
  duo.cancel("fails");

  const auto recomputing = duo.ask_decode(prompt, spoil(duo.prefill(prompt, "recomputes")), kTokens);
  const Answer& recomputed = duo.finish(*recomputing);
  EXPECT_EQ(recomputed.text(), support::fake_answer(prompt, kTokens)) << recomputed.body;
  EXPECT_THAT(recomputed.route(), StartsWith("recompute"));
  duo.cancel("recomputes");
  EXPECT_EQ(failures(duo), before + 2);
  EXPECT_TRUE(duo.settled()) << Duo::holdings(duo.p()) << Duo::holdings(duo.d());
}

json::Value unspoiled(json::Value transfer) {
  return transfer;
}

// --- Descriptors.

struct Misstatement {
  const char* name;
  std::function<void(kv::Descriptor&)> tell;
  const char* path;  // That the refusal names.
  friend void PrintTo(const Misstatement& one, std::ostream* out) { *out << one.name; }
};

class EveryMisstatement : public testing::TestWithParam<Misstatement> {};

INSTANTIATE_TEST_SUITE_P(
    Of, EveryMisstatement,
    testing::Values(
        Misstatement{"Lineage", [](kv::Descriptor& d) { d.identity.lineage = "another-model"; }, "lineage"},
        Misstatement{"Architecture", [](kv::Descriptor& d) { d.identity.architecture = "other"; },
                     "architecture"},
        Misstatement{"Config", [](kv::Descriptor& d) { d.identity.config_digest = "other"; }, "config"},
        Misstatement{"Tokenizer", [](kv::Descriptor& d) { d.identity.tokenizer_digest = "words"; },
                     "tokenizer"},
        Misstatement{"Adapters", [](kv::Descriptor& d) { d.identity.adapters = {{"lora", "abc"}}; },
                     "adapters"},
        Misstatement{"RopeTheta", [](kv::Descriptor& d) { d.identity.rope_theta = 500000; }, "theta"},
        Misstatement{"RopeScaling", [](kv::Descriptor& d) { d.identity.rope_scaling = "yarn"; }, "scaling"},
        Misstatement{"Transform", [](kv::Descriptor& d) { d.groups[0].components[0].value_transforms = {}; },
                     "transform"},
        Misstatement{"Heads",
                     [](kv::Descriptor& d) {
                       for (auto& component : d.groups[0].components) component.heads = 2;
                       d.partition[0].head_end = 2;
                     },
                     "heads"},
        Misstatement{"Layers",
                     [](kv::Descriptor& d) {
                       d.groups[0].layers.pop_back();
                       d.partition[0].layer_end = 3;
                     },
                     "layers"},
        Misstatement{"Dim",
                     [](kv::Descriptor& d) {
                       for (auto& component : d.groups[0].components) component.dim = 32;
                     },
                     "dim"}),
    [](const auto& each) { return each.param.name; });

TEST_P(EveryMisstatement, OfTheProducerIsRefusedByTheVerdictThatNamesIt) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node&) { p.tap.alter_descriptor = GetParam().tell; });
  expect_refused(duo, prompt_of(300), unspoiled,
                 AllOf(StartsWith("incompatible: "), HasSubstr(GetParam().path)));
}

TEST(Lies, ALayoutThatTheProducersMemoryDoesntHaveEndsInNoToken) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node&) {
    p.tap.alter_descriptor = [](kv::Descriptor& descriptor) {
      descriptor.representation = {
          kv::represent(**kv::find_storage("openvino:f32"), descriptor.groups[0])->representation};
    };
  });
  expect_refused(duo, prompt_of(300), unspoiled,
                 AllOf(StartsWith("invalid_argument: "), HasSubstr("block table")));
}

TEST(Lies, AnAgentWithoutTheFleetsKeyIsNoPeer) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node&) { p.fleet_key[0] = std::byte{1}; });
  expect_refused(duo, prompt_of(300), unspoiled, StartsWith("unavailable: "));
}

// --- Tickets.

TEST(Lies, ATicketWithOneCharacterChangedIsRefusedWhereverItIs) {
  Duo duo;
  const std::string prompt = prompt_of(40);
  const std::size_t size = duo.prefill(prompt, "measures").find("isthmus_ticket")->as_string()->size();
  duo.cancel("measures");
  for (const std::size_t at : {std::size_t{0}, size / 8, size / 4, size / 2, 3 * size / 4, size - 1}) {
    SCOPED_TRACE(fmt::format("character {} of {}", at, size));
    const auto spoil = [at](json::Value transfer) {
      char& character = transfer.find("isthmus_ticket")->as_string()->at(at);
      character = character == 'A' ? 'B' : 'A';
      return transfer;
    };
    expect_refused(
        duo, prompt, spoil,
        AnyOf(StartsWith("malformed: "), StartsWith("aborted: ticket refused"), StartsWith("unavailable: ")));
  }
}

TEST(Lies, ATicketOfTheProducersPastLifeIsRefused) {
  for (const bool was_connected : {false, true}) {
    Duo duo;
    if (was_connected) {
      EXPECT_TRUE(duo.hand_over(prompt_of(40), kTokens).is_whole());
    }
    const std::string prompt = prompt_of(300);
    const json::Value transfer = duo.prefill(prompt);
    duo.stop(duo.p());
    duo.start(duo.p());
    const auto failing = duo.ask_decode(prompt, transfer, kTokens, {.fail = true});
    EXPECT_THAT(duo.finish(*failing).error(), HasSubstr("other_incarnation"));
    const auto recomputing = duo.ask_decode(prompt, transfer, kTokens);
    EXPECT_EQ(duo.finish(*recomputing).text(), support::fake_answer(prompt, kTokens));
    EXPECT_TRUE(duo.settled());
    const Answer next = duo.hand_over(prompt, kTokens);
    EXPECT_THAT(next.route(), StartsWith("handoff")) << "the new life serves";
    EXPECT_EQ(next.text(), support::fake_answer(prompt, kTokens));
  }
}

TEST(Lies, ATicketWhoseReservationRanOutIsRefused) {
  Duo duo("llamacpp:f16", "openvino:f32", [](Node& p, Node&) { p.timings = hasty(); });
  const std::string prompt = prompt_of(300);
  const auto spoil = [&](json::Value transfer) {
    EXPECT_TRUE(duo.settled());  // Nobody came: the producer has freed its pins by itself.
    return transfer;
  };
  expect_refused(duo, prompt, spoil, AnyOf(HasSubstr("expired"), HasSubstr("unknown_reservation")));
  EXPECT_GT(Duo::count(duo.p(), "isthmus_ticket_refused_total"), 0);
}

TEST(Lies, ATicketForAnotherLengthIsRefused) {
  Duo duo;
  const std::string prompt = prompt_of(300);
  const auto spoil = [&](const json::Value&) { return duo.prefill(prompt.substr(0, 200), "shorter"); };
  const auto failing = duo.ask_decode(prompt, spoil({}), kTokens, {.fail = true});
  EXPECT_THAT(duo.finish(*failing).error(), HasSubstr("200"));
  duo.cancel("shorter");
  EXPECT_TRUE(duo.settled());
}

TEST(Lies, AStateOfAnotherPromptOfTheSameLengthIsRefused) {
  Duo duo;
  const std::string prompt = prompt_of(300, 1), other = prompt_of(300, 2);
  const auto failing = duo.ask_decode(prompt, duo.prefill(other, "other"), kTokens, {.fail = true});
  EXPECT_THAT(duo.finish(*failing).error(),
              AllOf(StartsWith("incompatible: "), HasSubstr("of other tokens")));
  duo.cancel("other");
  const auto recomputing = duo.ask_decode(prompt, duo.prefill(other, "other"), kTokens);
  EXPECT_EQ(duo.finish(*recomputing).text(), support::fake_answer(prompt, kTokens));
  duo.cancel("other");
  EXPECT_EQ(failures(duo), 2);
  EXPECT_TRUE(duo.settled());
}

// --- The wire.

// Damages the frame of a type and direction with this index, once for each prefill.
struct Damage {
  FrameType type;
  Direction direction;
  std::uint64_t index;
  std::function<std::byte&(RelayedFrame&)> where;
};

class Wire : public testing::Test {
 protected:
  // A prompt of two tiles and a rest: three chunks or more.
  const std::string prompt_ = prompt_of(600);

  // A fresh pair, so that sessions and frames are counted from the first.
  Answer ask(const Damage& damage, bool fail, bool* damaged) {
    duo_ = std::make_unique<Duo>(p_storage_, "openvino:f32");
    TcpRelay relay(duo_->loop(), *net::Endpoint::parse(duo_->p().agent));
    relay.set_judge([&](RelayedFrame& frame) {
      if (frame.type == damage.type && frame.direction == damage.direction && frame.index == damage.index) {
        damage.where(frame) ^= std::byte{0x10};
        *damaged = true;
      }
      return Passage::kForward;
    });
    const auto asking =
        duo_->ask_decode(prompt_, through(relay, duo_->prefill(prompt_, "id")), kTokens, {.fail = fail});
    const Answer answer = duo_->finish(*asking);
    duo_->cancel("id");
    EXPECT_TRUE(duo_->settled()) << Duo::holdings(duo_->p()) << Duo::holdings(duo_->d());
    return answer;
  }

  void expect_caught(const Damage& damage, const testing::Matcher<std::string>& why) {
    bool damaged = false;
    EXPECT_THAT(ask(damage, true, &damaged).error(), why);
    EXPECT_TRUE(damaged);
    EXPECT_EQ(failures(*duo_), 1);
    const Answer answer = ask(damage, false, &damaged);
    EXPECT_EQ(answer.text(), support::fake_answer(prompt_, kTokens)) << answer.body;
    EXPECT_THAT(answer.route(), StartsWith("recompute"));
    EXPECT_EQ(failures(*duo_), 1);
  }

  // The connection is given up, and the handoff goes on over another one.
  void expect_survived(const Damage& damage) {
    bool damaged = false;
    const Answer answer = ask(damage, true, &damaged);
    EXPECT_TRUE(damaged);
    EXPECT_EQ(answer.text(), support::fake_answer(prompt_, kTokens)) << answer.body;
    EXPECT_THAT(answer.route(), StartsWith("handoff"));
    EXPECT_EQ(failures(*duo_), 0);
    EXPECT_EQ(Duo::count(duo_->p(), "isthmus_handoffs_total", {"side=\"producer\"", "outcome=\"peer_lost\""}),
              1);
  }

  std::string p_storage_ = "llamacpp:f16";
  std::unique_ptr<Duo> duo_;
};

// Both ends store it as it crosses: it goes from P's blocks straight into D's.
TEST_F(Wire, AFlippedBitInABodyThatIsReceivedInPlaceIsCaught) {
  p_storage_ = "openvino:f32";
  for (const std::uint64_t index : {0, 1, 2}) {
    SCOPED_TRACE(index);
    const auto where = [](RelayedFrame& frame) -> std::byte& {
      return frame.payload[frame.payload.size() / 3];
    };
    expect_caught({FrameType::kData, Direction::kFromTarget, index, where},
                  AllOf(StartsWith("corrupt: "), HasSubstr("the target's memory has digest")));
  }
}

TEST_F(Wire, AFlippedBitInAChunksBodyIsCaught) {
  for (const std::uint64_t index : {0, 1, 2}) {
    SCOPED_TRACE(index);
    const auto where = [](RelayedFrame& frame) -> std::byte& {
      return frame.payload[frame.payload.size() / 3];
    };
    expect_caught({FrameType::kData, Direction::kFromTarget, index, where},
                  AllOf(StartsWith("corrupt: "), HasSubstr("the body has digest")));
    EXPECT_EQ(Duo::count(duo_->d(), "isthmus_handoffs_total", {"side=\"consumer\"", "outcome=\"corrupt\""}),
              1);
  }
}

TEST_F(Wire, AFlippedBitInAChunksHeaderIsCaughtWhereverItIs) {
  // Fixed part: magic, handoff, generation, plan, index, slot, box, sizes, checksum, flags, room; then tile
  // digests.
  for (const std::size_t at : {0, 12, 44, 52, 68, 72, 84, 100, 116, 124, 132, 140, 148, 156, 159, 170}) {
    SCOPED_TRACE(fmt::format("byte {}", at));
    const auto where = [at](RelayedFrame& frame) -> std::byte& { return frame.immediate[at]; };
    expect_survived({FrameType::kData, Direction::kFromTarget, 0, where});
  }
}

TEST_F(Wire, AFlippedBitInAnyControlFrameNeverChangesTheAnswer) {
  for (const Direction direction : {Direction::kToTarget, Direction::kFromTarget}) {
    int damages = 0;
    for (std::uint64_t index = 0; index < 6; ++index) {
      SCOPED_TRACE(fmt::format("frame {} {}", index, direction == Direction::kToTarget ? "to P" : "from P"));
      const auto where = [](RelayedFrame& frame) -> std::byte& {
        return frame.payload[frame.payload.size() / 2];
      };
      bool damaged = false;
      const Answer answer = ask({FrameType::kControl, direction, index, where}, false, &damaged);
      EXPECT_EQ(answer.text(), support::fake_answer(prompt_, kTokens)) << answer.body;
      if (answer.route().starts_with("recompute")) {
        EXPECT_EQ(failures(*duo_), 1);
      }
      damages += damaged ? 1 : 0;
    }
    EXPECT_GE(damages, 4);  // HELLO, proof, DATA_HELLO, and what opens the handoff.
  }
}

TEST_F(Wire, AFlippedBitInPlanOrSealCostsTheSessionAlone) {
  // From P: HELLO, proof, DATA_HELLO's answer, PLAN, SEAL.
  for (const std::uint64_t index : {3, 4}) {
    const auto where = [](RelayedFrame& frame) -> std::byte& {
      return frame.payload[frame.payload.size() / 2];
    };
    expect_survived({FrameType::kControl, Direction::kFromTarget, index, where});
  }
}

TEST_F(Wire, AFlippedBitInAFramesOwnHeaderCostsTheConnectionAlone) {
  for (const std::size_t at : {0, 4, 5}) {  // Magic, type, flags.
    SCOPED_TRACE(at);
    const auto where = [at](RelayedFrame& frame) -> std::byte& { return frame.header[at]; };
    expect_survived({FrameType::kData, Direction::kFromTarget, 1, where});
  }
}

// --- Memory.

class EveryStorage : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Of, EveryStorage, testing::Values("openvino:f32", "openvino:u8"),
                         [](const auto& each) { return std::string(each.param).substr(9); });

// Two parts of one layer in the same memory: what is placed last overwrites the other.
TEST_P(EveryStorage, ADestinationThatDoesNotKeepWhatIsPlacedIsCaught) {
  Duo duo("llamacpp:f16", GetParam(), [&](Node&, Node& d) {
    d.tap.on_bind = [](kv::Binding& binding) {
      kv::RegionMemory& first = binding.memory.at(4);
      for (const kv::RegionMemory& other : binding.memory) {
        if (other.layer == first.layer && other.region != first.region) first.base = other.base;
      }
    };
  });
  const std::string prompt = prompt_of(600);
  const auto asking = duo.ask_decode(prompt, duo.prefill(prompt, "id"), kTokens, {.fail = true});
  const Answer& answer = duo.finish(*asking);
  EXPECT_THAT(answer.error(), AllOf(StartsWith("corrupt: "), HasSubstr("the target's memory")))
      << answer.body;
  EXPECT_EQ(Duo::count(duo.d(), "isthmus_handoffs_total", {"outcome=\"corrupt\""}), 1);
  duo.cancel("id");
  EXPECT_TRUE(duo.settled());
  EXPECT_EQ(duo.d().worker->engine().stats().tokens_generated, 0U);
}

// A later chunk would overwrite an earlier one that was read back.
TEST_P(EveryStorage, ADestinationThatNamesABlockTwiceIsRefused) {
  Duo duo("llamacpp:f16", GetParam(), [&](Node&, Node& d) {
    d.tap.on_bind = [](kv::Binding& binding) { binding.blocks.back() = binding.blocks.front(); };
  });
  const std::string prompt = prompt_of(600);
  const auto asking = duo.ask_decode(prompt, duo.prefill(prompt, "id"), kTokens, {.fail = true});
  EXPECT_THAT(duo.finish(*asking).error(), HasSubstr("twice"));
  duo.cancel("id");
  EXPECT_TRUE(duo.settled());
}

}  // namespace
}  // namespace isthmus::faults
