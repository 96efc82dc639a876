// SPDX-License-Identifier: Apache-2.0
// The producer's process, the consumer's, and the talk between them.
#include "bench/ends.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <future>
#include <optional>
#include <thread>
#include <type_traits>

#include "base/clock.h"
#include "base/metrics.h"
#include "bench/plain_socket.h"
#include "bench/record.h"
#include "handoff/agent/agent.h"
#include "kv/descriptor.h"
#include "net/loop.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace isthmus::bench {
namespace {

constexpr Duration kRequest = std::chrono::seconds(60);
constexpr std::uint64_t kStagingBytes = std::uint64_t{1} << 30;

double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// What the parent asks of the child, and what it answers; fixed in size, one message each.
enum class Ask : std::uint8_t { kHello, kHandoff, kLoop, kCopy, kEcho };
struct Question {
  Ask what = Ask::kHello;
  std::uint64_t bytes = 0;        // kHello and kCopy: of the source; kLoop; kEcho: how many.
  std::uint64_t chunk_bytes = 0;  // kLoop.
  std::array<char, 2304> ticket{};
  std::array<char, 128> endpoint{};
};
struct Answer {
  bool ok = false;
  std::array<char, 1024> why{};
  double seconds = 0;
  std::uint64_t bytes = 0;
  double place = 0, verify = 0, receive = 0;
};

template <typename Message>
Status tell(const Socket& socket, const Message& message) {
  if (send(socket.fd(), &message, sizeof(message), MSG_NOSIGNAL) == sizeof(message)) return ok_status();
  return Error{Code::kUnavailable, "the other process of the bench is gone"};
}

template <typename Message>
Result<Message> hear(const Socket& socket) {
  Message message;
  if (recv(socket.fd(), &message, sizeof(message), 0) == sizeof(message)) return message;
  return Error{Code::kUnavailable, "the other process of the bench is gone"};
}

template <std::size_t kSize>
void put(std::array<char, kSize>& into, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), kSize - 1), into.begin());
}

// Memory that both processes map: the parent makes it before the fork, its size comes later.
class SharedCopy {
 public:
  static Result<SharedCopy> make() {
    Socket file(memfd_create("isthmus-bench", MFD_CLOEXEC));
    if (file.fd() < 0) return Error{Code::kUnavailable, fmt::format("memfd: {}", std::strerror(errno))};
    return SharedCopy(std::move(file));
  }
  SharedCopy(SharedCopy&& other) noexcept
      : file_(std::move(other.file_)), memory_(std::exchange(other.memory_, {})) {}
  SharedCopy& operator=(SharedCopy&&) = delete;
  ~SharedCopy() {
    if (!memory_.empty()) munmap(memory_.data(), memory_.size());
  }

  // All of it touched. exhausted.
  Status map(std::uint64_t bytes) {
    void* const at =
        ftruncate(file_.fd(), static_cast<off_t>(bytes)) != 0
            ? MAP_FAILED
            : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file_.fd(), 0);
    if (at == MAP_FAILED) {
      return Error{Code::kExhausted,
                   fmt::format("{} bytes of shared memory: {}", bytes, std::strerror(errno))};
    }
    memory_ = {static_cast<std::byte*>(at), bytes};
    return ok_status();
  }
  std::span<std::byte> memory() const { return memory_; }

 private:
  explicit SharedCopy(Socket file) : file_(std::move(file)) {}
  Socket file_;
  std::span<std::byte> memory_;
};

// An agent with its loop on a thread of its own.
class AgentThread {
 public:
  AgentThread(std::string name, kv::Descriptor descriptor, std::uint64_t state_bytes, bool is_shared_memory)
      : transport_(is_shared_memory ? transport::make_shm(loop_) : transport::make_tcp(loop_)),
        thread_([this] { loop_.run(); }) {
    handoff::AgentOptions options;
    options.name = std::move(name);
    options.fleet_key.fill(std::byte{7});
    options.policy.exactness = kv::Exactness::kUnqualified;
    options.capacity = {.kv = {.bytes = 4 * state_bytes, .blocks = 0}, .staging_bytes = kStagingBytes};
    made_ = on_loop(
        [&] { return handoff::make_agent(loop_, {transport_.get()}, descriptor, options, metrics_); });
  }
  ~AgentThread() {
    on_loop([&] {
      made_ = Error{Code::kCancelled, "over"};
      return 0;
    });
    loop_.stop();
    thread_.join();
  }
  AgentThread(const AgentThread&) = delete;
  AgentThread& operator=(const AgentThread&) = delete;

  Status status() const { return made_.status(); }
  handoff::Agent& agent() { return **made_; }

  template <typename Work>
  std::invoke_result_t<Work> on_loop(Work work) {
    std::promise<std::invoke_result_t<Work>> answer;
    loop_.post([&] { answer.set_value(work()); });
    return answer.get_future().get();
  }
  double loop_seconds() { return seconds_of(on_loop(thread_time)); }
  double busy(const std::string& stage) {
    return metrics_
        .counter("isthmus_handoff_busy_seconds_total", "Processor time that the mover spent in each stage",
                 {{"stage", stage}})
        .value();
  }

 private:
  net::Loop loop_;
  MetricsRegistry metrics_;
  std::unique_ptr<transport::Transport> transport_;
  std::thread thread_;
  Result<std::unique_ptr<handoff::Agent>> made_ = Error{Code::kInternal, "not made"};
};

std::vector<engine::TokenId> prompt_of(std::uint64_t tokens) {
  std::vector<engine::TokenId> prompt(tokens);
  for (std::uint64_t i = 0; i < tokens; ++i) prompt[i] = static_cast<engine::TokenId>(i * 31 % 1009);
  return prompt;
}

// --- The consumer's process.

class Consumer {
 public:
  Consumer(const EndsSpec& spec, const kv::Descriptor& descriptor, Socket talk, Socket bytes, SharedCopy copy)
      : spec_(spec),
        descriptor_(descriptor),
        prompt_(prompt_of(spec.tokens)),
        talk_(std::move(talk)),
        bytes_(std::move(bytes)),
        copy_(std::move(copy)) {}

  Status serve() {
    for (;;) {
      ISTHMUS_TRY(const Question question, hear<Question>(talk_));
      Answer answer;
      const Status done = carry_out(question, answer);
      answer.ok = done.ok();
      if (!done.ok()) put(answer.why, done.error().text());
      ISTHMUS_TRY(tell(talk_, answer));
    }
  }

 private:
  Status carry_out(const Question& question, Answer& answer) {
    switch (question.what) {
      case Ask::kHello:
        return prepare(question.bytes);
      case Ask::kHandoff:
        memory_->clear();
        return fetch(question, answer);
      case Ask::kLoop:
        return receive(question, answer);
      case Ask::kCopy:
        return copy(answer);
      case Ask::kEcho:
        return echo(question.bytes);
    }
    return Error{Code::kInternal, "no such question"};
  }

  Status prepare(std::uint64_t source_bytes) {
    ISTHMUS_TRY(memory_, SyntheticKv::make(descriptor_, spec_.tokens));
    if (spec_.is_shared_memory) ISTHMUS_TRY(copy_.map(source_bytes));
    agent_.emplace("bench-d", descriptor_, memory_->bytes(), spec_.is_shared_memory);
    return agent_->status();
  }

  Status fetch(const Question& question, Answer& answer) {
    struct End {
      Instant at;
      handoff::Ending ending;
      handoff::GrantId destination = 0;
    };
    std::promise<End> ended;
    handoff::FetchEvents events;
    events.reserve = [&](kv::TokenRange, const auto& done) { done(std::vector{memory_->binding()}); };
    events.release = [] {};
    events.owned = [&](const handoff::SealInfo&, handoff::GrantId destination,
                       const handoff::Ending& ending) { ended.set_value({now(), ending, destination}); };
    events.ended = [&](const handoff::SealInfo*, const handoff::Ending& ending) {
      ended.set_value({now(), ending, 0});
    };
    const double loop = agent_->loop_seconds(), place = agent_->busy("place"),
                 verify = agent_->busy("verify");
    Instant begin;
    Status begun = agent_->on_loop([&]() -> Status {
      begin = now();  // Here, on the loop's thread, a worker calls fetch() too.
      return agent_->agent()
          .fetch({.ticket = question.ticket.data(),
                  .endpoints = {question.endpoint.data()},
                  .prompt = kv::TokenChain(prompt_),
                  .destination = {.bytes = memory_->bytes(), .blocks = 0},
                  .deadline = begin + kRequest},
                 events)
          .status();
    });
    if (!begun.ok()) return begun;
    const End end = ended.get_future().get();
    agent_->on_loop([&] {
      agent_->agent().free_memory(end.destination);
      return 0;
    });
    if (end.ending.kind != handoff::TerminalKind::kOwned) return end.ending.error;
    answer.seconds = seconds_of(end.at - begin);
    answer.bytes = end.ending.bytes;
    answer.place = agent_->busy("place") - place;
    answer.verify = agent_->busy("verify") - verify;
    answer.receive = agent_->loop_seconds() - loop;
    return ok_status();
  }

  Status receive(const Question& question, Answer& answer) {
    const std::vector<std::span<std::byte>> regions = memory_->regions();
    memory_->clear();
    const std::byte go{1};
    const Instant begin = now();
    ISTHMUS_TRY(send_all(bytes_, std::span(&go, 1), 1));
    std::uint64_t left = question.bytes;
    for (std::size_t i = 0; left > 0; i = (i + 1) % regions.size()) {
      const std::uint64_t part = std::min<std::uint64_t>(left, regions[i].size());
      ISTHMUS_TRY(receive_all(bytes_, regions[i].first(part), question.chunk_bytes));
      left -= part;
    }
    answer.seconds = seconds_of(now() - begin);
    return ok_status();
  }

  Status copy(Answer& answer) {
    const std::vector<std::span<std::byte>> regions = memory_->regions();
    memory_->clear();
    std::span<const std::byte> left = copy_.memory();
    const Instant begin = now();
    for (std::size_t i = 0; !left.empty(); i = (i + 1) % regions.size()) {
      const std::size_t part = std::min(left.size(), regions[i].size());
      std::memcpy(regions[i].data(), left.data(), part);
      left = left.subspan(part);
    }
    answer.seconds = seconds_of(now() - begin);
    return ok_status();
  }

  Status echo(std::uint64_t count) {
    std::byte byte{};
    for (std::uint64_t i = 0; i < count; ++i) {
      ISTHMUS_TRY(receive_all(bytes_, std::span(&byte, 1), 1));
      ISTHMUS_TRY(send_all(bytes_, std::span(&byte, 1), 1));
    }
    return ok_status();
  }

  EndsSpec spec_;
  kv::Descriptor descriptor_;
  std::vector<engine::TokenId> prompt_;
  Socket talk_, bytes_;
  SharedCopy copy_;
  std::shared_ptr<SyntheticKv> memory_;
  std::optional<AgentThread> agent_;
};

// --- The producer's process.

class TwoProcesses final : public Ends {
 public:
  TwoProcesses(pid_t child, Socket talk, Socket bytes, SharedCopy copy)
      : child_(child), talk_(std::move(talk)), bytes_(std::move(bytes)), copy_(std::move(copy)) {}
  ~TwoProcesses() override {
    agent_.reset();
    talk_ = Socket();  // The child ends when it hears nothing more.
    bytes_ = Socket();
    waitpid(child_, nullptr, 0);
  }

  Status prepare(const EndsSpec& spec, const kv::Descriptor& source) {
    ISTHMUS_TRY(memory_, SyntheticKv::make(source, spec.tokens));
    if (spec.is_shared_memory) ISTHMUS_TRY(copy_.map(memory_->bytes()));
    agent_.emplace("bench-p", source, memory_->bytes(), spec.is_shared_memory);
    ISTHMUS_TRY(agent_->status());
    tokens_ = spec.tokens;
    kv::TokenChain chain;
    for (const engine::TokenId token : prompt_of(tokens_)) chain.append(token);
    chain_ = chain.digest();
    Question hello;
    hello.bytes = memory_->bytes();
    return ask(hello).status();
  }

  Result<HandoffTime> handoff(std::uint64_t seed) override {
    memory_->fill(seed);
    std::promise<handoff::Ending> ended;
    const auto offered = agent_->on_loop([&] { return offer(ended); });
    if (!offered.ok()) return offered.error();
    Question question;
    question.what = Ask::kHandoff;
    put(question.ticket, offered->ticket);
    put(question.endpoint, agent_->agent().endpoints().front());
    const double loop = agent_->loop_seconds(), pack = agent_->busy("pack");
    const Result<Answer> answer = ask(question);
    if (!answer.ok()) {
      agent_->on_loop([&] {
        agent_->agent().withdraw(offered->reservation, "the bench failed");
        return 0;
      });
    }
    const handoff::Ending ending = ended.get_future().get();
    if (!answer.ok()) return answer.error();
    if (ending.kind != handoff::TerminalKind::kDone) return ending.error;
    return HandoffTime{.seconds = answer->seconds,
                       .bytes = answer->bytes,
                       .busy = {{"pack", agent_->busy("pack") - pack},
                                {"send", agent_->loop_seconds() - loop},
                                {"receive", answer->receive},
                                {"place", answer->place},
                                {"verify", answer->verify}}};
  }

  Result<double> plain_loop(std::uint64_t seed, std::uint64_t chunk_bytes) override {
    memory_->fill(seed);
    Question question;
    question.what = Ask::kLoop;
    question.bytes = memory_->bytes();
    question.chunk_bytes = chunk_bytes;
    ISTHMUS_TRY(tell(talk_, question));
    std::byte go{};
    ISTHMUS_TRY(receive_all(bytes_, std::span(&go, 1), 1));
    for (const std::span<std::byte> region : memory_->regions())
      ISTHMUS_TRY(send_all(bytes_, region, chunk_bytes));
    ISTHMUS_TRY(const Answer answer, heard());
    return answer.seconds;
  }

  Result<double> plain_copy(std::uint64_t seed) override {
    std::span<std::byte> to = copy_.memory();
    if (to.empty()) return Error{Code::kInvalidArgument, "these ends share no memory"};
    memory_->fill(seed);
    for (const std::span<std::byte> region : memory_->regions()) {
      std::memcpy(to.data(), region.data(), region.size());
      to = to.subspan(region.size());
    }
    Question question;
    question.what = Ask::kCopy;
    ISTHMUS_TRY(const Answer answer, ask(question));
    return answer.seconds;
  }

  Result<double> round_trip(std::uint32_t count) override {
    Question question;
    question.what = Ask::kEcho;
    question.bytes = count;
    ISTHMUS_TRY(tell(talk_, question));
    std::vector<double> samples;
    std::byte byte{};
    for (std::uint32_t i = 0; i < count; ++i) {
      const Instant begin = now();
      ISTHMUS_TRY(send_all(bytes_, std::span(&byte, 1), 1));
      ISTHMUS_TRY(receive_all(bytes_, std::span(&byte, 1), 1));
      samples.push_back(seconds_of(now() - begin));
    }
    ISTHMUS_TRY(heard());
    return summarise(std::move(samples)).value_or(Summary{}).median;
  }

  std::uint64_t source_bytes() const override { return memory_->bytes(); }

 private:
  Result<Answer> heard() {
    ISTHMUS_TRY(const Answer answer, hear<Answer>(talk_));
    if (!answer.ok) return Error{Code::kAborted, std::string(answer.why.data())};
    return answer;
  }
  Result<Answer> ask(const Question& question) {
    ISTHMUS_TRY(tell(talk_, question));
    return heard();
  }

  Result<handoff::Offered> offer(std::promise<handoff::Ending>& ended) {
    handoff::Agent& agent = agent_->agent();
    ISTHMUS_TRY(handoff::Offered offered,
                agent.offer({.prompt_tokens = tokens_,
                             .pinned = {.bytes = memory_->bytes(), .blocks = 0},
                             .deadline = now() + kRequest},
                            [&ended](const handoff::Ending& ending) { ended.set_value(ending); }));
    agent.publish(offered.reservation, {0, tokens_}, memory_);
    handoff::SealInfo seal;
    seal.tokens = {0, tokens_};
    seal.token_digest = chain_;
    seal.first_tokens = {1};
    agent.seal(offered.reservation, std::move(seal));
    return offered;
  }

  pid_t child_;
  Socket talk_, bytes_;
  SharedCopy copy_;
  std::shared_ptr<SyntheticKv> memory_;
  std::optional<AgentThread> agent_;
  std::uint64_t tokens_ = 0;
  Digest128 chain_;
};

}  // namespace

Result<std::unique_ptr<Ends>> Ends::start(const EndsSpec& spec) {
  ISTHMUS_TRY(const kv::Descriptor source, describe(spec.source, spec.geometry));
  ISTHMUS_TRY(const kv::Descriptor target, describe(spec.target, spec.geometry));
  ISTHMUS_TRY(auto talk, message_pair());
  ISTHMUS_TRY(auto bytes, connected_pair());
  ISTHMUS_TRY(SharedCopy copy, SharedCopy::make());
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return Error{Code::kExhausted, "fork"};
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);
    talk.first = Socket();
    bytes.first = Socket();
    (void)Consumer(spec, target, std::move(talk.second), std::move(bytes.second), std::move(copy)).serve();
    _exit(0);
  }
  auto ends =
      std::make_unique<TwoProcesses>(child, std::move(talk.first), std::move(bytes.first), std::move(copy));
  talk.second = Socket();
  bytes.second = Socket();
  ISTHMUS_TRY(ends->prepare(spec, source));
  return std::unique_ptr<Ends>(std::move(ends));
}

}  // namespace isthmus::bench
