// SPDX-License-Identifier: Apache-2.0
// The commands, each from its values to its exit code.
#include "cli/run.h"

#include <fmt/format.h>

#include "base/log.h"
#include "base/metrics.h"
#include "bench/bench.h"
#include "cli/explain.h"
#include "cli/print.h"
#include "cli/serve_command.h"
#include "cli/sim_command.h"
#include "cli/up.h"
#include "cli/version.h"
#include "cli/watch_commands.h"
#include "router/shell/router.h"

namespace isthmus::cli {
namespace {

int fail(std::string_view command, const Error& error, int exit_code) {
  note_line(fmt::format("isthmus {}: {}", command, error.text()));
  return exit_code;
}

void show_pair(const UpCommand& up, const net::Endpoint& router) {
  note_line(
      fmt::format("isthmus up: prompts are computed by {}, answers by {}; what changes on the way:\n"
                  "  isthmus kv explain {} {} --model {}",
                  up.prefill.text(), up.decode.text(), up.prefill.text(), up.decode.text(), up.model_path));
  note_line(fmt::format(
      "isthmus up: try\n  curl -N http://{}/v1/chat/completions -H 'Content-Type: application/json' "
      "-d '{{\"stream\":true,\"messages\":[{{\"role\":\"user\",\"content\":\"Hello\"}}]}}'",
      router.text()));
}

// With a pair that the policy forbids each prompt would be computed twice; that is said before anything
// starts.
Status check_pair(const UpCommand& command) {
  ExplainCommand question;
  question.source = command.prefill.text();
  question.target = command.decode.text();
  question.model_path = command.model_path;
  question.exactness = command.exactness;
  ISTHMUS_TRY(const Explanation explanation, explain(question));
  if (!explanation.is_rejected) return ok_status();
  return Error{
      Code::kIncompatible,
      fmt::format(
          "this policy doesn't let {} hand its states to {}:\n{}Choose another pair, or measure this one and "
          "add its record (spec/qualification.md), or accept the risk with --policy unqualified.",
          question.source, question.target, explanation.text)};
}

int run_up(UpCommand command) {
  log::configure(log::Level::kInfo, "router");
  if (command.model_path.empty()) command.model_path = kDefaultModel;
  if (const Status pair = check_pair(command); !pair.ok()) return fail("up", pair.error(), kExitCannotStart);
  net::Loop loop;
  int exit_code = kExitOk;
  UpSetup setup;
  setup.command = command;
  UpEvents events;
  events.on_note = [](const std::string& text) { note_line("isthmus up: " + text); };
  events.on_ready = [&](const net::Endpoint& router) {
    show_pair(command, router);
    print_line(fmt::format("ready http://{}", router.text()));
  };
  events.on_end = [&](int code) {
    exit_code = code;
    loop.stop();
  };
  const auto up = Up::start(loop, std::move(setup), std::move(events));
  if (!up.ok()) return fail("up", up.error(), kExitCannotStart);
  loop.on_signal([&](int) { (*up)->stop(); });
  loop.run();
  return exit_code;
}

int run_router(const RouterCommand& command) {
  log::configure(log::Level::kInfo, "router");
  auto fleet = fleet::load_fleet(command.fleet_file);
  if (!fleet.ok()) return fail("router", fleet.error(), kExitCannotStart);
  router::shell::RouterOptions options;
  options.fleet = *std::move(fleet);
  options.listen = command.listen;
  options.health_interval = std::chrono::milliseconds(command.health_interval_ms);
  options.core.queue_max = command.queue_max;
  options.core.request_timeout = std::chrono::seconds(command.request_timeout_s);
  options.core.queue_timeout =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(command.queue_wait_s));
  net::Loop loop;
  MetricsRegistry metrics;
  const auto router = router::shell::Router::start(loop, std::move(options), metrics);
  if (!router.ok()) return fail("router", router.error(), kExitCannotStart);
  loop.on_signal([&](int) { loop.stop(); });
  print_line(fmt::format("ready http://{}", (*router)->endpoint().text()));
  loop.run();
  return kExitOk;
}

int run_explain(const ExplainCommand& command) {
  const auto explanation = explain(command);
  if (!explanation.ok()) return fail("kv explain", explanation.error(), kExitCannotStart);
  print(command.json ? explanation->json : explanation->text);
  return explanation->is_rejected ? kExitRejected : kExitOk;
}

// The table comes when all is measured; lines as they are.
int run_bench(const BenchCommand& command) {
  log::configure(log::Level::kWarn, "bench");
  std::vector<bench::Record> records;
  const bench::Sink sink{.record =
                             [&](const bench::Record& record) {
                               records.push_back(record);
                               if (command.json) print_line(bench::to_json(record));
                             },
                         .progress = [](const std::string& text) { note_line(text); }};
  const auto bench = command.what == "handoff" ? bench::bench_handoff
                     : command.what == "kv"    ? bench::bench_kv
                                               : bench::bench_plan;
  bench(command.options, sink);
  if (!command.json) print(bench::to_table(records));
  return bench_exit_code(records, command.check);
}

}  // namespace

int bench_exit_code(const std::vector<bench::Record>& records, bool check) {
  return check && bench::is_any_missed(records) ? kExitBarMissed : kExitOk;
}

int run_program(const std::vector<std::string>& arguments, const Engines& engines) {
  const Parsed parsed = parse(arguments);
  if (!parsed.command.has_value()) {
    if (parsed.exit_code == kExitOk) {
      print(parsed.text);
    } else {
      note_line(parsed.text);
    }
    return parsed.exit_code;
  }
  if (const auto* up = std::get_if<UpCommand>(&*parsed.command)) return run_up(*up);
  if (const auto* router = std::get_if<RouterCommand>(&*parsed.command)) return run_router(*router);
  if (const auto* worker = std::get_if<WorkerCommand>(&*parsed.command)) return engines.run_worker(*worker);
  if (const auto* bench = std::get_if<BenchCommand>(&*parsed.command)) return run_bench(*bench);
  if (const auto* serve = std::get_if<ServeCommand>(&*parsed.command)) return run_serve(*serve);
  if (const auto* check = std::get_if<FleetCheckCommand>(&*parsed.command)) return run_fleet_check(*check);
  if (const auto* inspect = std::get_if<InspectCommand>(&*parsed.command)) return run_inspect(*inspect);
  if (const auto* pair = std::get_if<DoctorPairCommand>(&*parsed.command)) return run_doctor_pair(*pair);
  if (const auto* top = std::get_if<TopCommand>(&*parsed.command)) return run_top(*top);
  if (const auto* sim = std::get_if<SimCommand>(&*parsed.command)) return run_sim(*sim);
  if (const auto* kv = std::get_if<KvCommand>(&*parsed.command)) return run_kv(*kv);
  if (const auto* live = std::get_if<LiveCommand>(&*parsed.command))
    return run_live(*live, engines.make_engine, engines.make_tokenizer);
  if (const auto* qualify = std::get_if<QualifyCommand>(&*parsed.command))
    return run_qualify(*qualify, engines.make_engine, engines.make_tokenizer);
  return run_explain(std::get<ExplainCommand>(*parsed.command));
}

}  // namespace isthmus::cli
