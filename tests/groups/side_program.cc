// SPDX-License-Identifier: Apache-2.0
// One end of a group's handoff in a process of its own: group_side_program SIDE TRANSPORT PACE PARENT.
// Commands come as lines on stdin, answers go to stdout; the end of stdin is the end. A router's part,
// passing members' tickets on, is played by the test.
//   producer: offer | publish END | seal        consumer: member SOURCE TARGET TICKET ENDPOINTS | fetch |
//   answer both:     await moving | over | bare | baseline      answered when it is so
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "groups/crossing.h"
#include "groups/side.h"
#include "handoff/agent/group_links.h"

namespace isthmus::groups {
namespace {

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// What a handoff may open and must close again.
struct Held {
  std::size_t descriptors = 0, threads = 0, segments = 0;
  friend bool operator==(const Held&, const Held&) = default;

  static std::size_t entries(const char* folder) {
    const std::filesystem::directory_iterator all(folder);
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  }
  static Held now() {
    Held held{.descriptors = entries("/proc/self/fd"), .threads = entries("/proc/self/task")};
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
      held.segments += line.find("isthmus-payload") != std::string::npos ? 1 : 0;
    return held;
  }
  std::string text() const {
    return fmt::format("{} descriptors, {} threads, {} segments", descriptors, threads, segments);
  }
};

// Commands of either side, and what both can await. Loop's thread.
class Side {
 public:
  Side(net::Loop& loop, Crew& crew) : loop_(loop), crew_(crew) {
    awaited["bare"] = {[this] { return crew_.is_bare(); }, [this] { return crew_.holdings(); }};
    awaited["baseline"] = {[this] { return crew_.is_bare() && Held::now() == baseline_; },
                           [this] {
                             return fmt::format("{} {}, {} at first", crew_.holdings(), Held::now().text(),
                                                baseline_.text());
                           }};
    commands["await"] = [this](std::istream& in) {
      std::string what;
      in >> what;
      await(what, isthmus::now() + kPatience);
    };
  }
  void set_baseline() { baseline_ = Held::now(); }

  void obey(const std::string& line) {
    std::istringstream in(line);
    std::string word;
    in >> word;
    const auto found = commands.find(word);
    if (found == commands.end()) return say("failed: unknown " + line);
    found->second(in);
  }

  struct Condition {
    std::function<bool()> holds;
    std::function<std::string()> text;  // How things stand.
  };
  std::map<std::string, std::function<void(std::istream&)>> commands;
  std::map<std::string, Condition> awaited;

 private:
  void await(const std::string& what, Instant limit) {
    const Condition& condition = awaited.at(what);
    if (condition.holds()) return say(fmt::format("{} {}", what, condition.text()));
    if (isthmus::now() >= limit) return say(fmt::format("failed: not {}: {}", what, condition.text()));
    next_look_ = loop_.after(std::chrono::milliseconds(2), [this, what, limit] { await(what, limit); });
  }

  net::Loop& loop_;
  Crew& crew_;
  Held baseline_;
  std::unique_ptr<net::Loop::Timer> next_look_;
};

void told(const Status& status, const std::string& what) {
  say(status.ok() ? what : fmt::format("failed: {}: {}", what, status.error().text()));
}

void serve_producer(Side& side, Producing& p) {
  side.commands["offer"] = [&p](std::istream&) {
    // Whoever chose the pair tells the consumer's descriptor.
    const Status offered = p.offer((*engine::make_reference(decoder()))->descriptor());
    if (!offered.ok()) return told(offered, "offered");
    for (const handoff::MemberTicket& member : p.offered->members()) say(line_of(member));
    say("offered");
  };
  side.commands["publish"] = [&p](std::istream& in) {
    std::size_t end = 0;
    in >> end;
    p.publish(end);
  };
  side.commands["seal"] = [&p](std::istream&) { p.seal(); };
  side.awaited["over"] = {
      [&p] { return p.released.has_value(); },
      [&p] { return fmt::format("{} {}", p.ends, p.released ? name(*p.released) : "-"); }};
}

void serve_consumer(Side& side, Consuming& d, std::vector<handoff::MemberTicket>& members) {
  side.commands["member"] = [&members](std::istream& in) { members.push_back(member_of(in)); };
  side.commands["fetch"] = [&](std::istream&) { told(d.fetch(members), "fetching"); };
  side.commands["answer"] = [&d](std::istream&) {
    const bool is_owner = !d.grants.empty();
    const Logits rows = is_owner ? d.answer() : d.answer_alone();
    const auto computed = d.engine().usage().tokens_computed;
    if (is_owner) d.give_up_memory();
    say(fmt::format("answer {} {}", digest_of(rows), computed));
  };
  side.awaited["moving"] = {
      [&d] { return d.is_moving() && d.has_of_each_member(); },
      [&d] { return fmt::format("{}", d.entered(handoff::ConsumerState::kReceiving)); }};
  side.awaited["over"] = {[&d] { return d.is_over; },
                          [&d] { return fmt::format("{} {}", d.ends, name(d.ending.kind)); }};
}

// A part of the consumer's ranks: the first of them with the lead, or one of the others.
class Ranks {
 public:
  Ranks(net::Loop& loop, Side& side, Consuming& d, const handoff::Timings& timings) : side_(side), d_(d) {
    const handoff::GroupLinkOptions options{fmt::format("d-ranks/{}", d.here().at(0)), {}, timings};
    side.commands["members"] = [&d](std::istream& in) { in >> d.members; };
    side.commands["memory"] = [&d](std::istream& in) {
      std::string path;
      in >> path;
      const auto bytes = d.memory();
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
      d.give_up_memory();
      say("written");
    };
    d.here().at(0) == 0 ? lead(loop, options) : follow(loop, options);
  }
  ~Ranks() { d_.lead = nullptr; }  // Before the hub.

 private:
  void lead(net::Loop& loop, const handoff::GroupLinkOptions& options) {
    hub_ = std::make_unique<handoff::GroupHub>(
        loop, std::vector{d_.transport()}, options, d_.engine().descriptor(),
        std::vector<handoff::GroupHub::Place>{{"d-ranks/1", {1}}, {"d-ranks/2", {2}}});
    ISTHMUS_CHECK(hub_->listen("127.0.0.1:0").ok());
    d_.take_lead(options.timings, hub_->seats());
    hub_->attach(d_.lead.get());
    side_.commands["where"] = [this](std::istream&) { say(hub_->endpoints().at(0)); };
    side_.awaited["complete"] = {[this] { return hub_->is_complete(); }, [] { return std::string("."); }};
  }
  void follow(net::Loop& loop, const handoff::GroupLinkOptions& options) {
    link_ = std::make_unique<handoff::SeatLink>(
        loop, std::vector{d_.transport()}, options, "d-ranks/0",
        handoff::GroupSeat::Here{d_.here(), d_.agents(), d_.engine().descriptor(), {}, options.timings},
        handoff::SeatLink::Events{[this](const Status&) { is_lost_ = true; },
                                  [this](handoff::GroupId) { return d_.events(); }});
    side_.commands["join"] = [this](std::istream& in) {
      std::string endpoint;
      in >> endpoint;
      link_->join({endpoint});
    };
    side_.awaited["lost"] = {[this] { return is_lost_; }, [] { return std::string("."); }};
  }

  Side& side_;
  Consuming& d_;
  bool is_lost_ = false;
  std::unique_ptr<handoff::GroupHub> hub_;
  std::unique_ptr<handoff::SeatLink> link_;
};

int serve(const std::string& role, const std::string& transport, const handoff::Timings& timings) {
  net::Loop loop;
  std::unique_ptr<Producing> p;
  std::unique_ptr<Consuming> d;
  std::vector<handoff::MemberTicket> members;
  const bool is_part = role.starts_with("rank");
  if (role == "producer") p = std::make_unique<Producing>(loop, transport, prefiller(), timings);
  if (role == "consumer") d = std::make_unique<Consuming>(loop, transport, decoder(), timings);
  if (is_part) {
    const auto rank = static_cast<std::uint32_t>(std::atoi(role.c_str() + 4));
    d = std::make_unique<Consuming>(loop, transport, decoder(), timings, std::vector{rank});
  }
  if (!p && !d) return 2;
  Side side(loop, p ? static_cast<Crew&>(*p) : *d);
  std::unique_ptr<Ranks> ranks;
  if (p) serve_producer(side, *p);
  if (d) serve_consumer(side, *d, members);
  if (is_part) ranks = std::make_unique<Ranks>(loop, side, *d, timings);
  if (d && !is_part) d->take_lead(timings);
  std::thread reader([&] {
    for (std::string line; std::getline(std::cin, line);) loop.post([&side, line] { side.obey(line); });
    loop.stop();
  });
  side.set_baseline();
  say("ready");
  loop.run();
  reader.join();
  return 0;
}

}  // namespace
}  // namespace isthmus::groups

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != std::atoi(argv[4])) return 1;
  const bool is_hasty = std::string(argv[3]) == "hasty";
  return isthmus::groups::serve(argv[1], argv[2],
                                is_hasty ? isthmus::groups::hasty() : isthmus::handoff::Timings{});
}
