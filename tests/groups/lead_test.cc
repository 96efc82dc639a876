// SPDX-License-Identifier: Apache-2.0
// A lead whose other ranks are the test's, a seat whose lead is the test, and who may join.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "groups/crossing.h"
#include "groups/side.h"
#include "handoff/agent/group_links.h"
#include "net/run_until.h"

namespace isthmus::groups {
namespace {

using handoff::TerminalKind;
using testing::HasSubstr;
using wire::GroupReport;
using wire::GroupReportKind;
using wire::GroupWord;
using wire::GroupWordKind;

// Rank 0 is here; what ranks 1 and 2 are told is kept.
class Lead : public testing::Test {
 protected:
  Lead() : p(loop, "tcp", prefiller(), hasty()), d(loop, "tcp", decoder(), hasty(), {0}) {
    std::vector<handoff::RemoteSeat> seats;
    for (std::uint32_t i = 0; i < 2; ++i) {
      seats.push_back({{i + 1}, [this, i](const wire::Frame& frame) {
                         if (const auto* word = std::get_if<GroupWord>(&frame)) told[i].push_back(*word);
                         if (const auto* begin = std::get_if<wire::GroupBegin>(&frame)) begun[i] = *begin;
                       }});
    }
    d.take_lead(hasty(), std::move(seats));
    EXPECT_TRUE(p.offer(d.engine().descriptor()).ok());
  }
  void fetch() {
    d.lead->seat_up(0);
    d.lead->seat_up(1);
    const Status fetched = d.fetch(p.offered->members());
    ASSERT_TRUE(fetched.ok()) << fetched.error().text();
  }
  Status report(std::size_t other, GroupReport report) {
    report.group = d.group;
    return d.lead->heard(other, report);
  }
  GroupWordKind last(std::size_t other) const {
    EXPECT_FALSE(told[other].empty());
    return told[other].back().word;
  }
  [[nodiscard]] bool until(const std::function<bool()>& holds) {
    return net::run_until(loop, holds, kPatience);
  }

  net::Loop loop;
  Producing p;
  Consuming d;
  std::vector<GroupWord> told[2];
  wire::GroupBegin begun[2];
};

TEST_F(Lead, WithoutAProcessThereIsNoGroup) {
  d.lead->seat_up(0);
  EXPECT_EQ(d.fetch(p.offered->members()).code(), Code::kUnavailable);
}

TEST_F(Lead, MemoryIsTakenInAllProcessesOrInNone) {
  fetch();
  EXPECT_TRUE(begun[0].members[0].ticket.empty()) << "it is another rank's";
  EXPECT_FALSE(begun[0].members[1].ticket.empty());
  ASSERT_TRUE(report(0, {.report = GroupReportKind::kAsked}).ok());
  EXPECT_EQ(last(0), GroupWordKind::kTake);
  EXPECT_EQ(last(1), GroupWordKind::kTake);
  EXPECT_EQ(d.agent(0).ledger().live(), 1u);
  ASSERT_TRUE(report(0, {.report = GroupReportKind::kTaken}).ok());
  EXPECT_EQ(last(0), GroupWordKind::kTake) << "it hasn't heard of all";
  ASSERT_TRUE(report(1, {.report = GroupReportKind::kRefused, .code = Code::kExhausted}).ok());
  EXPECT_EQ(last(0), GroupWordKind::kGiveUp);
  EXPECT_EQ(d.agent(0).ledger().live(), 0u);
  ASSERT_TRUE(until([&] { return last(0) == GroupWordKind::kTake; })) << "it doesn't ask again";
  for (const std::size_t other : {0, 1}) ASSERT_TRUE(report(other, {.report = GroupReportKind::kTaken}).ok());
  EXPECT_EQ(last(0), GroupWordKind::kBind);
  EXPECT_EQ(last(1), GroupWordKind::kBind);
  d.lead->cancel(d.group);
  EXPECT_EQ(last(1), GroupWordKind::kEnd);
  ASSERT_TRUE(until([&] { return d.is_over && p.released; }));
  EXPECT_EQ(d.ending.kind, TerminalKind::kCancelled);
}

TEST_F(Lead, UnlikeSealsOrDescriptorsOwnNothing) {
  for (const bool is_seal : {true, false}) {
    fetch();
    GroupReport one{
        .report = GroupReportKind::kVerified, .member = 3, .seal = wire::GroupSeal{{0, kPrompt}, {1, 1}}};
    ASSERT_TRUE(report(1, one).ok());
    one.member = 1;
    (is_seal ? one.seal->token_digest : one.source) = {2, 2};
    ASSERT_TRUE(report(0, one).ok());
    EXPECT_EQ(last(1), GroupWordKind::kEnd);
    EXPECT_EQ(told[1].back().ending,
              static_cast<std::uint32_t>(is_seal ? TerminalKind::kCorrupt : TerminalKind::kRejected));
    ASSERT_TRUE(until([&] { return d.is_over; }));
    EXPECT_EQ(d.entered(handoff::ConsumerState::kOwned), 0);
    d.is_over = false;
  }
}

TEST_F(Lead, AProcessSpeaksOfItsOwnMembersAlone) {
  fetch();
  const wire::GroupSeal seal{{0, kPrompt}, {1, 1}};
  EXPECT_EQ(report(0, {.report = GroupReportKind::kOwned, .member = 0}).code(), Code::kMalformed);
  EXPECT_EQ(report(0, {.report = GroupReportKind::kEnded, .member = 4}).code(), Code::kMalformed);
  ASSERT_TRUE(report(0, {.report = GroupReportKind::kVerified, .member = 1, .seal = seal}).ok());
  told[0].push_back({});
  for (const TerminalKind kind : {TerminalKind::kOwned, TerminalKind::kFinished}) {
    EXPECT_NE(last(0), GroupWordKind::kEnd);
    ASSERT_TRUE(
        report(0,
               {.report = GroupReportKind::kEnded, .member = 1, .ending = static_cast<std::uint32_t>(kind)})
            .ok());
    EXPECT_EQ(last(0), GroupWordKind::kEnd);
    EXPECT_EQ(told[0].back().ending, static_cast<std::uint32_t>(TerminalKind::kFailed))
        << "no good end without its seal";
    fetch();
    told[0].push_back({});
  }
  d.lead->seat_down(1);
  EXPECT_EQ(last(0), GroupWordKind::kEnd);
  EXPECT_EQ(told[0].back().ending, static_cast<std::uint32_t>(TerminalKind::kPeerLost));
  ASSERT_TRUE(until([&] { return d.ends == 3; }));
  EXPECT_EQ(d.ending.kind, TerminalKind::kPeerLost);
}

// Rank 1 of three, led by the test.
class Seat : public testing::Test {
 protected:
  Seat() : p(loop, "tcp", prefiller(), hasty()), d(loop, "tcp", decoder(), hasty(), {1}) {
    seat = std::make_unique<handoff::GroupSeat>(
        loop, handoff::GroupSeat::Here{{1}, d.agents(), d.engine().descriptor(), {}, hasty()},
        [this](const GroupReport& report) { reports.push_back(report); },
        [this](handoff::GroupId) { return d.events(); });
    EXPECT_TRUE(p.offer(d.engine().descriptor()).ok());
    begin = {.group = 1,
             .tokens = kPrompt,
             .token_digest = chain_of(prompt_of(kPrompt)),
             .deadline_ms = 60'000,
             .members = {},
             .destination = {{1, 2000, 0}}};
    for (const auto& member : p.offered->members()) {
      begin.members.push_back(
          {member.route.source_rank, member.route.target_rank, member.ticket, member.endpoints});
    }
  }
  Status word(GroupWord word) {
    word.group = 1;
    return seat->hear(word);
  }
  [[nodiscard]] bool until(const std::function<bool()>& holds) {
    return net::run_until(loop, holds, kPatience);
  }
  bool has(GroupReportKind kind) const {
    return std::ranges::find(reports, kind, &GroupReport::report) != reports.end();
  }

  net::Loop loop;
  Producing p;
  Consuming d;
  std::unique_ptr<handoff::GroupSeat> seat;
  std::vector<GroupReport> reports;
  wire::GroupBegin begin;
};

TEST_F(Seat, OwnsNothingThatItHasNotVerifiedWhateverTheLeadSays) {
  ASSERT_TRUE(seat->hear(begin).ok());
  ASSERT_TRUE(until([&] { return has(GroupReportKind::kAsked); }));
  ASSERT_TRUE(word({.word = GroupWordKind::kBind}).ok());  // Before it has taken any: nothing.
  EXPECT_EQ(d.engine().usage().sequences, 0u);
  ASSERT_TRUE(word({.word = GroupWordKind::kTake}).ok());
  ASSERT_TRUE(word({.word = GroupWordKind::kBind}).ok());
  p.publish(kTile);
  d.members = 2;
  ASSERT_TRUE(until([&] { return d.is_moving() && d.has_of_each_member(); }));
  ASSERT_TRUE(word({.word = GroupWordKind::kOwn, .member = 1}).ok());
  ASSERT_TRUE(word({.word = GroupWordKind::kEnd,
                    .ending = static_cast<std::uint32_t>(TerminalKind::kOwned),
                    .seal = wire::GroupSeal{{0, kPrompt}, {1, 1}, {1}}})
                  .ok());
  for (const std::uint32_t member : {1u, 2u})
    ASSERT_TRUE(seat->hear({.group = 1, .word = GroupWordKind::kAbandon, .member = member}).ok());
  ASSERT_TRUE(until([&] { return d.is_over || d.is_bare(); }));
  p.offered->withdraw("it isn't wanted");
  ASSERT_TRUE(until([&] { return d.is_over && d.is_bare(); })) << d.holdings();
  EXPECT_EQ(d.ending.kind, TerminalKind::kFailed);
  EXPECT_TRUE(d.grants.empty());
  EXPECT_EQ(d.entered(handoff::ConsumerState::kOwned), 0);
}

TEST_F(Seat, RefusesWhatCannotBeMeant) {
  EXPECT_EQ(word({.word = GroupWordKind::kTake}).code(), Code::kMalformed) << "not begun";
  wire::GroupBegin other = begin;
  other.destination[0].rank = 2;
  EXPECT_EQ(seat->hear(other).code(), Code::kMalformed);
  ASSERT_TRUE(seat->hear(begin).ok());
  EXPECT_EQ(seat->hear(begin).code(), Code::kMalformed) << "begun twice";
  EXPECT_EQ(word({.word = GroupWordKind::kOwn, .member = 0}).code(), Code::kMalformed) << "another rank's";
  seat->lead_lost();
  ASSERT_TRUE(until([&] { return d.is_over && d.is_bare(); }));
  EXPECT_EQ(d.ending.kind, TerminalKind::kPeerLost);
  EXPECT_TRUE(seat->hear(begin).ok()) << "its next life numbers its groups anew";
}

// Only who proves the fleet key, has a place, and has the same descriptor is one of the ranks.
TEST(GroupHub, TakesItsOwnRanksAlone) {
  net::Loop loop;
  Consuming lead(loop, "tcp", decoder(), hasty(), {0}), rank(loop, "tcp", decoder(), hasty(), {1});
  handoff::GroupHub hub(loop, {lead.transport()}, {"hub", {}, hasty()}, lead.engine().descriptor(),
                        {{"one", {1}}});
  ASSERT_TRUE(hub.listen("127.0.0.1:0").ok());
  const auto joins = [&](const std::string& name, const Key& key, const std::string& expected,
                         const kv::Descriptor& descriptor) {
    bool is_lost = false;
    handoff::SeatLink link(
        loop, {rank.transport()}, {name, key, hasty()}, expected,
        {{1}, rank.agents(), descriptor, {}, hasty()},
        {[&](const Status&) { is_lost = true; }, [&](handoff::GroupId) { return rank.events(); }});
    link.join(hub.endpoints());
    EXPECT_TRUE(net::run_until(loop, [&] { return is_lost || hub.is_complete(); }, kPatience));
    return !is_lost;
  };
  Key other_key{};
  other_key[0] = std::byte{1};
  const kv::Descriptor& descriptor = rank.engine().descriptor();
  EXPECT_FALSE(joins("two", {}, "hub", descriptor)) << "it has no place";
  EXPECT_FALSE(joins("one", other_key, "hub", descriptor));
  EXPECT_FALSE(joins("one", {}, "another hub", descriptor));
  EXPECT_FALSE(joins("one", {}, "hub", (*engine::make_reference(prefiller()))->descriptor()));
  EXPECT_FALSE(hub.is_complete());
  EXPECT_TRUE(joins("one", {}, "hub", descriptor));
  EXPECT_TRUE(net::run_until(loop, [&] { return !hub.is_complete(); }, kPatience)) << "it has gone";
}

}  // namespace
}  // namespace isthmus::groups
