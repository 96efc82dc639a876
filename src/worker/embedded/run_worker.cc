// SPDX-License-Identifier: Apache-2.0
// The worker program: engine by name, probe, ready line, signals.
#include "worker/embedded/run_worker.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/rng.h"
#include "engine/probe/probe.h"
#include "fleet/fleet.h"
#include "worker/embedded/engines.h"
#include "worker/worker.h"

namespace isthmus::worker {
namespace {

// What the fleet file says of this worker: the key, TLS, the policy of its model, its plane's prices, and the
// files of its checkpoint.
Status read_fleet(const WorkerOptions& options, WorkerParts& parts, std::vector<std::string>& lineage) {
  handoff::AgentOptions& agent = parts.agent;
  std::string& served_model = parts.service.served_model;
  if (options.fleet_file.empty()) {
    random_bytes(agent.fleet_key);
    if (served_model.empty()) served_model = "default";
    return ok_status();
  }
  ISTHMUS_TRY(const fleet::Fleet fleet, fleet::load_fleet(options.fleet_file));
  ISTHMUS_TRY(agent.fleet_key, load_key(fleet.key_file));
  if (fleet.tls.has_value()) {
    ISTHMUS_TRY(parts.tls, net::load_tls(*fleet.tls));
  }
  if (served_model.empty() && fleet.models.size() == 1) served_model = fleet.models.front().name;
  const fleet::Model* model = fleet.find_model(served_model);
  if (model == nullptr) {
    return Error{Code::kInvalidArgument, fmt::format("model '{}' isn't in {}; name one with --served-model",
                                                     served_model, options.fleet_file)};
  }
  agent.policy = fleet.policy(*model);
  lineage = model->lineage;
  if (const kv::Prices* prices = fleet.prices_of(options.name)) {
    agent.prices = *prices;
    ISTHMUS_LOG(kInfo, "prices", "digest={} link={} codecs={}", prices->digest().hex(), prices->link,
                prices->codecs.size());
  }
  return ok_status();
}

Result<Role> parse_role(const std::string& text) {
  if (text == "prefill") return Role::kPrefill;
  if (text == "decode") return Role::kDecode;
  if (text == "both") return Role::kBoth;
  return Error{Code::kInvalidArgument, fmt::format("role '{}' isn't one of prefill, decode, both", text)};
}

// A role needs what the engine can do: to prefill for others is to be a source, to decode a state of others a
// sink.
Status check_role(engine::Engine& engine, Role role) {
  if (role == Role::kPrefill && engine.kv_source() == nullptr) {
    return Error{Code::kUnsupported, fmt::format("{} can't hand its state over yet", engine.info().name)};
  }
  if (role == Role::kDecode && engine.kv_sink() == nullptr) {
    return Error{Code::kUnsupported, fmt::format("{} can't take a state over yet", engine.info().name)};
  }
  return ok_status();
}

// A file has its model's lineage only if the fleet file lists it there.
Status check_lineage(const engine::Engine& engine, const std::vector<std::string>& files) {
  const std::string& own = engine.descriptor().weights_digest;
  if (files.empty() || std::ranges::find(files, own) != files.end()) return ok_status();
  return Error{Code::kIncompatible,
               fmt::format("the model file's SHA-256 is {}, which isn't in its model's lineage in the fleet "
                           "file; list it there if it was made of the same checkpoint",
                           own)};
}

// The proportions of the default timings: three renewals within a lease, and a margin well below one. A lease
// isn't renewed for who waits for memory (spec/handoff.md §8), so that wait ends well before it.
void set_lease(handoff::Timings& timings, Duration lease) {
  timings.lease = lease;
  timings.capacity_max = std::min(timings.capacity_max, lease / 2);
  timings.lease_margin = lease / 20;
  timings.renew_interval = lease * 3 / 10;
}

// Else a step might have no room for a prompt beside the answers under way.
Status check_step_tokens(const WorkerOptions& options, const engine::EngineInfo& info) {
  const std::uint64_t least = std::uint64_t{options.sequences_max} + std::max(info.block_tokens, 2u) + 1;
  if (options.step_tokens >= least) return ok_status();
  return Error{Code::kInvalidArgument,
               fmt::format("steps of {} tokens are too short for {} sequences: at least {} (--step-tokens)",
                           options.step_tokens, options.sequences_max, least)};
}

Result<WorkerParts> assemble(WorkerOptions options) {
  WorkerParts parts;
  std::vector<std::string> lineage;
  ISTHMUS_TRY(parts.listen, net::Endpoint::parse(options.listen));
  ISTHMUS_TRY(parts.service.role, parse_role(options.role));
  parts.service.served_model = options.served_model;
  ISTHMUS_TRY(read_fleet(options, parts, lineage));
  parts.service.request_timeout = std::chrono::seconds(options.request_timeout_s);
  parts.service.queue_wait =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.queue_wait_s));
  parts.agent.name = options.name;
  parts.agent.listen = options.agent_listen;
  parts.transports = options.transports;
  set_lease(parts.agent.timings, std::chrono::milliseconds(options.lease_ms));
  ISTHMUS_LOG(kInfo, "loading", "engine={} model={}", options.engine, options.model_path);
  ISTHMUS_TRY(auto tokenizer, make_tokenizer(options.model_path));
  parts.tokenizer = std::move(tokenizer);
  if (!lineage.empty()) options.lineage = lineage.front();
  ISTHMUS_TRY(parts.engine, make_engine(options));
  ISTHMUS_TRY(check_lineage(*parts.engine, lineage));
  ISTHMUS_TRY(check_role(*parts.engine, parts.service.role));
  ISTHMUS_TRY(check_step_tokens(options, parts.engine->info()));
  parts.engine_limits.step_tokens_max = options.step_tokens;
  return parts;
}

void report(const char* what, const Error& error) {
  std::fprintf(stderr, "isthmus worker: %s: %s\n", what, error.text().c_str());
}

void tie_to_parent(std::int64_t parent) {
  if (parent == 0) return;
  prctl(PR_SET_PDEATHSIG, SIGINT);
  if (getppid() != parent) std::raise(SIGINT);  // It ended before we asked to be told.
}

}  // namespace

int run_worker(const WorkerOptions& given) {
  WorkerOptions options = given;
  if (options.name.empty()) options.name = fmt::format("{}-{}", options.engine, getpid());
  log::configure(log::Level::kInfo, options.name);
  net::Loop loop;
  std::function<void(int)> drains;  // Once it serves.
  loop.on_signal([&](int number) { drains ? drains(number) : loop.stop(); });
  tie_to_parent(options.die_with_parent);

  Result<WorkerParts> parts = assemble(options);
  if (!parts.ok()) {
    report("cannot start", parts.error());
    return kExitCannotStart;
  }
  const Result<engine::ProbeReport> probe =
      engine::probe_meaning(*parts->engine, options.model_path, engine::probe_tolerance(*parts->engine));
  if (!probe.ok()) {
    report("probe failed, refusing to serve", probe.error());
    return kExitProbeFailed;
  }
  ISTHMUS_LOG(kInfo, "probe passed", "{}", probe->text());
  Result<std::unique_ptr<Worker>> worker = Worker::start(loop, *std::move(parts));
  if (!worker.ok()) {
    report("cannot start", worker.error());
    return kExitCannotStart;
  }
  std::printf("ready http://%s agent %s\n", (*worker)->endpoint().text().c_str(),
              fmt::format("{}", fmt::join((*worker)->agent().endpoints(), ",")).c_str());
  std::fflush(stdout);
  drains = [&, has_begun = false](int number) mutable {
    if (number != SIGTERM || std::exchange(has_begun, true)) return loop.stop();
    ISTHMUS_LOG(kInfo, "draining", "name={} limit_s={}", options.name, options.drain_s);
    (*worker)->drain(std::chrono::seconds(options.drain_s), [&loop] { loop.stop(); });
  };
  loop.run();
  ISTHMUS_LOG(kInfo, "stopping", "name={}", options.name);
  return kExitOk;
}

}  // namespace isthmus::worker
