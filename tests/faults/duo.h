// SPDX-License-Identifier: Apache-2.0
// Two workers with unlike engines on one loop, their client, and what a router would do between them.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mac.h"
#include "base/status.h"
#include "base/time.h"
#include "handoff/core/protocol.h"
#include "http/client.h"
#include "http/json.h"
#include "http/server.h"
#include "kv/prices.h"
#include "net/loop.h"
#include "support/fake_engine.h"
#include "support/step_gate.h"
#include "support/tapped_engine.h"
#include "worker/worker.h"

namespace isthmus::faults {

// Generous: what should happen happens in milliseconds, and sanitizers on a busy machine take their time.
inline constexpr Duration kPatience = std::chrono::seconds(60);
inline constexpr const char* kModel = "fake";

// One worker's making. Ports are kept over a restart.
struct Node {
  std::string name;
  support::FakeEngineOptions engine;
  support::EngineTap tap;
  std::shared_ptr<const engine::Tokenizer> tokenizer = support::make_fake_tokenizer();
  worker::EngineLoopLimits limits;
  handoff::Timings timings;
  std::optional<kv::Prices> prices;
  Key fleet_key{};
  Duration request_timeout = 10 * kPatience;  // Only what a test is about may end a request.
  Duration queue_wait = 10 * kPatience;       // Likewise.
  net::Endpoint http{"127.0.0.1", 0};
  std::string agent = "127.0.0.1:0";  // Over tcp.
  std::vector<std::string> transports = {"shm", "tcp"};
  http::ServerLimits http_limits;
  support::StepGate gate;  // Each step of the engine passes it.
  std::unique_ptr<worker::Worker> worker;
};

// What came back for one request.
struct Answer {
  int status = 0;  // 0: no head came.
  http::Headers headers;
  std::string body;
  bool is_over = false;
  Status ended;  // Of the connection.

  // Whole answers and streamed ones alike.
  std::string text() const;   // Of the choice, all pieces joined.
  std::string error() const;  // "code: message" of the error object or event; "" if there is none.
  bool is_whole() const;      // 200, ended well, and, if streamed, with [DONE] last.
  std::string route() const { return std::string(http::header(headers, "X-Isthmus-Route")); }
};

// A request under way. Destroying it is a client that leaves.
struct Asking {
  std::unique_ptr<http::Call> call;
  Answer answer;
};

struct Ask {
  bool stream = false;
  bool fail = false;  // isthmus_on_failure=fail
  std::string request_id{};
};

// Short enough that a test may wait for each of them to fire.
handoff::Timings hasty();

class Duo {
 public:
  // Storages of P and D. `prepare` may change either before it starts.
  explicit Duo(const std::string& p_storage = "llamacpp:f16", const std::string& d_storage = "openvino:f32",
               const std::function<void(Node& p, Node& d)>& prepare = {});
  ~Duo();

  net::Loop& loop() { return loop_; }
  Node& p() { return p_; }
  Node& d() { return d_; }
  void start(Node& node);
  void stop(Node& node);  // Destroys the worker, as a process that dies does for its peers.

  // Requests of any kind.
  std::unique_ptr<Asking> send(const net::Endpoint& to, http::Request request);
  std::unique_ptr<Asking> post(const net::Endpoint& to, const std::string& path, const std::string& body,
                               const std::string& request_id = {});
  // P's leg; fails the test unless it is answered with a transfer object, which it returns.
  json::Value prefill(const std::string& prompt, const std::string& request_id = {});
  std::unique_ptr<Asking> ask_prefill(const std::string& prompt, const std::string& request_id = {});
  // D's leg.
  std::unique_ptr<Asking> ask_decode(const std::string& prompt, const json::Value& transfer,
                                     std::size_t tokens, Ask ask = {});
  // Both legs, the answer whole.
  Answer hand_over(const std::string& prompt, std::size_t tokens, const Ask& ask = {});
  Answer& finish(Asking& asking);
  // The router's word to P that nobody wants this prefill any more.
  void cancel(const std::string& request_id);
  // A completion that a worker computes alone.
  Answer alone(Node& node, const std::string& prompt, std::size_t tokens);

  // Runs the loop until it holds; false if it doesn't in kPatience.
  [[nodiscard]] bool until(const std::function<bool()>& holds);
  // Both workers hold nothing of any request any more.
  [[nodiscard]] bool settled();
  static std::string holdings(const Node& node);  // For messages of tests.
  // The sum of a metric's samples whose labels include those given: {"side=\"consumer\""}.
  static double count(const Node& node, std::string_view metric,
                      std::initializer_list<std::string_view> labels = {});

 private:
  static bool is_bare(const Node& node);

  net::Loop loop_;
  std::unique_ptr<http::Client> client_;
  Node p_, d_;
};

// A text of `tokens` tokens; unlike seeds, unlike texts from the first token on.
std::string prompt_of(std::size_t tokens, unsigned seed = 0);
json::Value completion_body(const std::string& prompt, std::size_t tokens, bool stream = false);

}  // namespace isthmus::faults
