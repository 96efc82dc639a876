// SPDX-License-Identifier: Apache-2.0
// Strangers at every port: random bytes, half frames, lengths that nobody means, connections that say
// nothing. Each is answered or closed within a time, nothing stays behind, and whoever comes next is served.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/metrics.h"
#include "faults/duo.h"
#include "faults/routed.h"
#include "fleet/fleet.h"
#include "net/stream.h"
#include "router/shell/router.h"
#include "transport/tcp/frame.h"

namespace isthmus::faults {
namespace {

// Of a request to arrive and of a handshake: long enough for honest peers on a busy machine.
constexpr Duration kHurry = std::chrono::seconds(2);

std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

// Sends a text and waits for the other side to close.
struct Stranger {
  std::string text;
  std::unique_ptr<net::Connecting> connecting;
  std::unique_ptr<net::Stream> stream;
  std::byte next{};
  bool is_closed = false;

  Stranger(net::Loop& loop, const net::Endpoint& to, std::string says) : text(std::move(says)) {
    connecting = net::connect(loop, to, kPatience, [this](Result<std::unique_ptr<net::Stream>> made) {
      ASSERT_TRUE(made.ok()) << made.error().text();
      stream = *std::move(made);
      if (!text.empty()) stream->write({bytes_of(text)}, [](const Status&) {});
      read();
    });
  }
  void read() {
    stream->read({&next, 1}, [this](const Status& status) {
      is_closed = !status.ok();
      if (!is_closed) read();
    });
  }
};

class Strangers : public testing::Test {
 protected:
  Strangers()
      : duo_("llamacpp:f16", "openvino:f32", [](Node& p, Node& d) {
          for (Node* node : {&p, &d}) node->http_limits.idle_timeout = node->timings.handshake_max = kHurry;
        }) {
    router::shell::RouterOptions options;
    options.server.idle_timeout = kHurry;
    options.health_interval = std::chrono::milliseconds(20);
    options.listen = {"127.0.0.1", 0};
    fleet::Model& model = options.fleet.models.emplace_back();
    model.name = kModel;
    model.canary = fleet::Canary::kOff;
    options.fleet.workers = workers_of(duo_);
    auto started = router::shell::Router::start(duo_.loop(), std::move(options), metrics_);
    EXPECT_TRUE(started.ok());
    router_ = *std::move(started);
    EXPECT_TRUE(duo_.until([&] { return router_->ready().ok(); }));
    serves();
    files_ = open_files();
  }
  ~Strangers() override { router_.reset(); }

  std::vector<net::Endpoint> http_ports() { return {duo_.p().http, duo_.d().http, router_->endpoint()}; }
  std::vector<net::Endpoint> agent_ports() {
    return {net::Endpoint::parse(duo_.p().agent).value(), net::Endpoint::parse(duo_.d().agent).value()};
  }
  void visit(const net::Endpoint& port, std::string says) {
    strangers_.push_back(std::make_unique<Stranger>(duo_.loop(), port, std::move(says)));
  }
  // A state crosses, by the router's hand.
  void serves() {
    const std::string prompt = prompt_of(300);
    const auto asking = duo_.post(router_->endpoint(), "/v1/completions", completion_body(prompt, 6).dump());
    const Answer& answer = duo_.finish(*asking);
    EXPECT_EQ(answer.text(), support::fake_answer(prompt, 6)) << answer.status << answer.body;
    EXPECT_TRUE(answer.route().starts_with("handoff")) << answer.route();
  }
  void nothing_stays() {
    EXPECT_TRUE(duo_.until([&] {
      return std::ranges::all_of(strangers_, [](const auto& stranger) { return stranger->is_closed; });
    })) << "a stranger's connection is still open";
    serves();
    strangers_.clear();
    EXPECT_TRUE(duo_.settled());
    EXPECT_TRUE(duo_.until([&] { return open_files() <= files_; })) << open_files() << " of " << files_;
  }

  Duo duo_;
  MetricsRegistry metrics_;
  std::unique_ptr<router::shell::Router> router_;
  std::vector<std::unique_ptr<Stranger>> strangers_;
  std::size_t files_ = 0;
};

std::string random_text(std::mt19937_64& rng, std::size_t bytes) {
  std::string text(bytes, '\0');
  for (char& c : text) c = static_cast<char>(rng());
  return text;
}

std::string control_header(std::uint64_t length) {
  const auto header =
      transport::encode({.type = transport::FrameType::kControl, .immediate_bytes = 0, .length = length});
  return std::string(text_of(std::span<const std::byte>(header)));
}

TEST_F(Strangers, RandomBytesAreRefusedAtEveryPort) {
  std::mt19937_64 rng(7);
  for (int visit_number = 0; visit_number < 12; ++visit_number) {
    const std::string noise = random_text(rng, 1 + rng() % 3000);
    for (const net::Endpoint& port : http_ports()) {
      visit(port, noise);
      visit(port, noise + "\r\n\r\n");
      visit(port, "POST /v1/completions HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + noise);
      visit(port, "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffff0\r\n" +
                      noise);
    }
    for (const net::Endpoint& port : agent_ports()) {
      visit(port, noise);
      visit(port, control_header(noise.size()) + noise);
    }
  }
  nothing_stays();
  EXPECT_GT(Duo::count(duo_.p(), "isthmus_handoff_peer_refused_total"), 0);
}

TEST_F(Strangers, ConnectionsThatSayNothingOrStopHalfwayAreClosed) {
  for (int i = 0; i < 10; ++i) {
    for (const net::Endpoint& port : http_ports()) {
      visit(port, "");
      visit(port, "GET /health HTT");
      visit(port, "POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{\"prom");
    }
    for (const net::Endpoint& port : agent_ports()) {
      visit(port, "");
      visit(port, control_header(500).substr(0, 7));
      visit(port, control_header(500) + "half of it");
    }
  }
  nothing_stays();
}

TEST_F(Strangers, AnnouncedLengthsTakeNoMemory) {
  constexpr int kVisits = 50;
  const std::size_t before = mallinfo2().uordblks;
  for (int i = 0; i < kVisits; ++i) {
    for (const net::Endpoint& port : agent_ports())
      visit(port, control_header(transport::kControlBytesMax) + "a few bytes");
  }
  ASSERT_TRUE(duo_.until([&] {
    return std::ranges::all_of(strangers_, [](const auto& stranger) { return stranger->stream != nullptr; });
  }));
  serves();  // By then all of them have been read.
  const std::size_t after = mallinfo2().uordblks;
  // Sanitizers' allocators tell nothing here and pass.
  EXPECT_LT(after, before + std::size_t{16} * 1024 * 1024);
  const std::string beyond = control_header(1).substr(0, 8) + std::string(8, '\xff');
  for (const net::Endpoint& port : agent_ports()) visit(port, beyond);
  nothing_stays();
}

}  // namespace
}  // namespace isthmus::faults
