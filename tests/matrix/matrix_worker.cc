// SPDX-License-Identifier: Apache-2.0
// A worker process that loads no model and stands still at a named state of the handoff when it is told to.
// All but engine and tokenizer is the product's.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <thread>
#include <utility>

#include "base/log.h"
#include "fleet/fleet.h"
#include "matrix/state_hold.h"
#include "net/loop.h"
#include "support/fake_engine.h"
#include "worker/worker.h"

namespace isthmus::matrix {
namespace {

struct Options {
  std::string name, fleet_file, role = "both", storage = "llamacpp:f16";
  std::string listen = "127.0.0.1:0", agent_listen = "127.0.0.1:0";
  std::vector<std::string> transports;
  std::uint32_t lease_ms = 600, request_timeout_ms = 3000, step_ms = 0, step_tokens = 128;
};

// Every wait of the handoff is as short, against the lease, as it can be on a machine that is busy.
handoff::Timings timings_of(Duration lease) {
  return {.lease = lease,
          .lease_margin = lease / 12,
          .renew_interval = lease / 4,
          .resend_interval = lease / 6,
          .open_max = lease * 4 / 3,
          .promise_max = lease * 4 / 3,
          .plan_max = lease * 4 / 3,
          .capacity_max = lease / 2,
          .verify_max = lease * 4,
          .quiesce_max = lease / 3,
          .tombstone = lease * 4,
          .connect_max = lease,
          .handshake_max = lease};
}

Result<worker::WorkerParts> assemble(const Options& options, const std::shared_ptr<StateHold>& hold) {
  ISTHMUS_TRY(const fleet::Fleet fleet, fleet::load_fleet(options.fleet_file));
  if (fleet.models.size() != 1) return Error{Code::kInvalidArgument, "the fleet must serve one model"};
  worker::WorkerParts parts;
  support::FakeEngineOptions engine{.storage = options.storage,
                                    .kv_tokens = 4096,
                                    .step_tokens_max = options.step_tokens,
                                    .context_tokens = 2048,
                                    .before_step = {}};
  if (options.step_ms > 0) {
    engine.before_step = [step = std::chrono::milliseconds(options.step_ms)](
                             std::span<const engine::StepItem>) { std::this_thread::sleep_for(step); };
  }
  parts.engine = support::make_fake_engine(engine);
  parts.tokenizer = support::make_fake_tokenizer();
  ISTHMUS_TRY(parts.listen, net::Endpoint::parse(options.listen));
  parts.service = {.served_model = fleet.models.front().name,
                   .role = options.role == "prefill"  ? worker::Role::kPrefill
                           : options.role == "decode" ? worker::Role::kDecode
                                                      : worker::Role::kBoth,
                   .request_timeout = std::chrono::milliseconds(options.request_timeout_ms)};
  parts.engine_limits.step_tokens_max = options.step_tokens;
  if (!options.transports.empty()) parts.transports = options.transports;
  parts.agent.name = options.name;
  ISTHMUS_TRY(parts.agent.fleet_key, load_key(fleet.key_file));
  parts.agent.listen = options.agent_listen;
  parts.agent.policy = fleet.policy(fleet.models.front());
  parts.agent.timings = timings_of(std::chrono::milliseconds(options.lease_ms));
  parts.agent.on_state = [hold](auto state) { hold->on_state(state); };
  return parts;
}

int serve(const Options& options) {
  net::Loop loop;
  loop.on_signal([&loop](int) { loop.stop(); });
  const auto hold = std::make_shared<StateHold>(loop);
  Result<worker::WorkerParts> parts = assemble(options, hold);
  Result<std::unique_ptr<worker::Worker>> worker =
      parts.ok() ? worker::Worker::start(loop, *std::move(parts)) : parts.error();
  if (!worker.ok()) {
    std::fprintf(stderr, "matrix_worker: %s\n", worker.error().text().c_str());
    return 3;
  }
  std::printf("ready http://%s agent %s\n", (*worker)->endpoint().text().c_str(),
              fmt::format("{}", fmt::join((*worker)->agent().endpoints(), ",")).c_str());
  std::fflush(stdout);
  std::thread(StateHold::read_commands, hold).detach();  // Blocked in a read when the process ends.
  loop.run();
  return 0;
}

}  // namespace
}  // namespace isthmus::matrix

int main(int argc, char** argv) {
  isthmus::matrix::Options options;
  CLI::App app{"A worker without a model, for the fault matrix"};
  app.add_option("--name", options.name)->required();
  app.add_option("--fleet", options.fleet_file)->required();
  app.add_option("--role", options.role);
  app.add_option("--storage", options.storage);
  app.add_option("--listen", options.listen);
  app.add_option("--agent-listen", options.agent_listen);
  app.add_option("--transports", options.transports)->delimiter(',');
  app.add_option("--lease", options.lease_ms);
  app.add_option("--request-timeout", options.request_timeout_ms);
  app.add_option("--step-ms", options.step_ms);
  CLI11_PARSE(app, argc, argv);
  isthmus::log::configure(isthmus::log::Level::kInfo, options.name);
  return isthmus::matrix::serve(options);
}
