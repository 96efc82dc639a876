// SPDX-License-Identifier: Apache-2.0
// The command line: values, defaults, refusals, help.
#include "cli/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/run.h"

namespace isthmus::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <typename T>
T parsed(const std::vector<std::string>& arguments) {
  const Parsed result = parse(arguments);
  EXPECT_TRUE(result.command.has_value()) << result.text;
  if (!result.command.has_value() || std::get_if<T>(&*result.command) == nullptr) return {};
  return std::get<T>(*result.command);
}

std::string refused(const std::vector<std::string>& arguments) {
  const Parsed result = parse(arguments);
  EXPECT_FALSE(result.command.has_value());
  EXPECT_EQ(result.exit_code, kExitUsage);
  return result.text;
}

TEST(Options, UpJoinsLlamacppAndOpenvinoByDefault) {
  const auto up = parsed<UpCommand>({"up"});
  EXPECT_EQ(up.prefill.text(), "llamacpp:f16");
  EXPECT_EQ(up.decode.text(), "openvino:u8");
  EXPECT_EQ(up.listen.text(), "127.0.0.1:8000");
  EXPECT_EQ(up.exactness, kv::Exactness::kBounded);
}

TEST(Options, UpTakesEnginesWithAndWithoutKvType) {
  const auto up = parsed<UpCommand>({"up", "--prefill", "llamacpp:f32", "--decode=openvino", "--listen",
                                     "0.0.0.0:0", "--policy", "unqualified", "--threads", "3"});
  EXPECT_EQ(up.prefill.text(), "llamacpp:f32");
  EXPECT_EQ(up.decode.text(), "openvino:u8");
  EXPECT_EQ(up.listen.port, 0);
  EXPECT_EQ(up.exactness, kv::Exactness::kUnqualified);
  EXPECT_EQ(up.threads, 3u);
}

TEST(Options, UpTakesActivationsOfEachWorkerWhoseEngineHasAChoice) {
  const auto up = parsed<UpCommand>({"up", "--decode-activations", "int8"});
  EXPECT_EQ(up.prefill_activations, "f32");
  EXPECT_EQ(up.decode_activations, "int8");
  EXPECT_EQ(parsed<UpCommand>({"up", "--prefill-activations", "f32"}).decode_activations, "f32");
  EXPECT_THAT(refused({"up", "--prefill-activations", "int8"}),
              HasSubstr("--prefill-activations int8: llamacpp has no choice of activations; openvino has"));
  EXPECT_THAT(refused({"up", "--decode", "llamacpp", "--decode-activations", "int8"}),
              HasSubstr("--decode-activations int8: llamacpp has"));
  EXPECT_THAT(refused({"up", "--decode-activations", "int4"}), HasSubstr("--decode-activations"));
}

TEST(Options, UpRefusesWhatIsNotThereYetWithWhatIs) {
  EXPECT_THAT(refused({"up", "--prefill", "vllm"}),
              AllOf(HasSubstr("--prefill vllm: no such engine; it can be llamacpp:f16"),
                    HasSubstr("openvino:u8, openvino:f32")));
  EXPECT_THAT(refused({"up", "--decode", "openvino:bf16"}), HasSubstr("loses accuracy"));
  EXPECT_THAT(refused({"up", "--decode", "vllm:flash_nhd"}), HasSubstr("no engine here stores it yet"));
  EXPECT_THAT(refused({"up", "--prefill", "llamacpp:q9"}), HasSubstr("no such KV type"));
  EXPECT_THAT(refused({"up", "--prefill", "llamacpp:"}), HasSubstr("no such KV type"));
  EXPECT_THAT(refused({"up", "--prefill", ""}), HasSubstr("no such engine"));
  EXPECT_THAT(refused({"up", "--listen", "8000"}), HasSubstr("--listen"));
  EXPECT_THAT(refused({"up", "--polcy", "bounded"}), HasSubstr("--polcy"));
  EXPECT_THAT(refused({"up", "--threads", "0"}), HasSubstr("--threads"));
}

TEST(Options, WorkerTakesAllThatAWorkerNeeds) {
  const auto worker = parsed<WorkerCommand>({"worker",     "--engine",          "openvino",  "--role",
                                             "decode",     "--model",           "m.gguf",    "--kv",
                                             "f32",        "--listen",          "0.0.0.0:1", "--agent-listen",
                                             "10.0.0.1:2", "--fleet",           "f.yaml",    "--name",
                                             "d1",         "--threads",         "4",         "--served-model",
                                             "m",          "--kv-tokens",       "4096",      "--sequences",
                                             "2",          "--request-timeout", "9",         "--lease",
                                             "500",        "--die-with-parent", "7",         "--isa",
                                             "avx2",       "--drain",           "5",         "--activations",
                                             "int8",       "--parked-tokens",   "0",         "--step-tokens",
                                             "64"});
  EXPECT_EQ(worker.parked_tokens, 0u);
  EXPECT_EQ(worker.drain_s, 5u);
  EXPECT_EQ(worker.step_tokens, 64u);
  EXPECT_EQ(worker.queue_wait_s, 30);
  EXPECT_EQ(worker.engine, "openvino");
  EXPECT_EQ(worker.role, "decode");
  EXPECT_EQ(worker.model_path, "m.gguf");
  EXPECT_EQ(worker.kv_type, "f32");
  EXPECT_EQ(worker.listen, "0.0.0.0:1");
  EXPECT_EQ(worker.agent_listen, "10.0.0.1:2");
  EXPECT_EQ(worker.fleet_file, "f.yaml");
  EXPECT_EQ(worker.name, "d1");
  EXPECT_EQ(worker.served_model, "m");
  EXPECT_EQ(worker.threads, 4u);
  EXPECT_EQ(worker.kv_tokens, 4096u);
  EXPECT_EQ(worker.sequences_max, 2u);
  EXPECT_EQ(worker.request_timeout_s, 9u);
  EXPECT_EQ(worker.lease_ms, 500u);
  EXPECT_EQ(worker.die_with_parent, 7);
  EXPECT_EQ(worker.isa, "avx2");
  EXPECT_EQ(worker.activations, "int8");
  EXPECT_THAT(refused({"worker", "--engine", "openvino", "--model", "m", "--isa", "sse2"}),
              HasSubstr("--isa"));
  EXPECT_THAT(refused({"worker", "--model", "m.gguf"}), HasSubstr("--engine is required"));
  EXPECT_THAT(refused({"worker", "--engine", "vllm", "--model", "m"}), HasSubstr("--engine"));
  EXPECT_THAT(refused({"worker", "--engine", "openvino", "--model", "m", "--listen", "x"}),
              HasSubstr("--listen"));
}

TEST(Options, RouterAndExplainTakeTheirOwn) {
  const auto router =
      parsed<RouterCommand>({"router", "--fleet", "f.yaml", "--listen", "127.0.0.1:0", "--queue", "3"});
  EXPECT_EQ(router.fleet_file, "f.yaml");
  EXPECT_EQ(router.queue_max, 3u);
  EXPECT_EQ(router.listen.port, 0);
  EXPECT_THAT(refused({"router"}), HasSubstr("--fleet is required"));
  const auto explain =
      parsed<ExplainCommand>({"kv", "explain", "a:b", "c:d", "--policy", "lossless", "--dim", "128"});
  EXPECT_EQ(explain.source, "a:b");
  EXPECT_EQ(explain.target, "c:d");
  EXPECT_EQ(explain.exactness, kv::Exactness::kLossless);
  EXPECT_EQ(explain.dim, 128u);
  refused({"kv"});
  refused({"kv", "explain", "a:b"});
  refused({});
  refused({"upp"});
}

TEST(Options, ARequestMayWaitAsLongAsIsSaid) {
  const std::vector<std::string> worker = {"worker", "--engine", "llamacpp", "--model", "m", "--queue-wait"};
  const auto with = [&](const char* seconds) {
    std::vector<std::string> arguments = worker;
    arguments.emplace_back(seconds);
    return arguments;
  };
  EXPECT_EQ(parsed<WorkerCommand>(with("0.5")).queue_wait_s, 0.5);
  EXPECT_THAT(refused(with("0")), HasSubstr("--queue-wait"));
  EXPECT_EQ(parsed<RouterCommand>({"router", "--fleet", "f", "--queue-wait", "2"}).queue_wait_s, 2);
  EXPECT_EQ(parsed<UpCommand>({"up", "--queue-wait", "3"}).queue_wait_s, 3);
  EXPECT_EQ(parsed<UpCommand>({"up"}).queue_wait_s, 30);
}

TEST(Options, BenchMeasures256MiBSevenTimesByDefault) {
  const auto bench = parsed<BenchCommand>({"bench", "handoff"});
  EXPECT_EQ(bench.what, "handoff");
  EXPECT_EQ(bench.options.size_bytes, std::uint64_t{256} << 20);
  EXPECT_EQ(bench.options.runs, 7u);
  EXPECT_TRUE(bench.options.cases.empty());
  EXPECT_FALSE(bench.json || bench.check);
}

TEST(Options, BenchTakesSizeRunsCasesAndForms) {
  const auto bench = parsed<BenchCommand>(
      {"bench", "kv", "--size", "64", "--runs", "3", "--case", "u8", "--case", "f32", "--json", "--check"});
  EXPECT_EQ(bench.options.size_bytes, std::uint64_t{64} << 20);
  EXPECT_EQ(bench.options.runs, 3u);
  EXPECT_EQ(bench.options.cases, (std::vector<std::string>{"u8", "f32"}));
  EXPECT_TRUE(bench.json && bench.check);
  refused({"bench"});
  refused({"bench", "router"});
  refused({"bench", "handoff", "--runs", "0"});
}

TEST(Options, ServeTakesOneKindOfLoad) {
  const std::vector<std::string> serve = {"bench", "serve", "--url", "http://127.0.0.1:8000"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), serve.begin(), serve.end());
    return more;
  };
  const auto rates = parsed<ServeCommand>(with({"--rates",         "1,2.5",
                                                "--duration",      "7",
                                                "--timeout",       "9",
                                                "--prompt-tokens", "uniform:5-6",
                                                "--output-tokens", "lognormal:20,0.5",
                                                "--slo",           "ttft=2s,tpot=50ms",
                                                "--seed",          "3",
                                                "--model",         "m",
                                                "--connections",   "11",
                                                "--json",          "--check"}));
  EXPECT_EQ(rates.to.text(), "127.0.0.1:8000");
  EXPECT_EQ(rates.rates, (std::vector<double>{1, 2.5}));
  EXPECT_EQ(rates.window, Duration(std::chrono::seconds(7)));
  EXPECT_EQ(rates.timeout, Duration(std::chrono::seconds(9)));
  EXPECT_EQ(rates.lengths.text(), "uniform:5-6 > lognormal:20,0.5");
  EXPECT_EQ(rates.slo.text(), "ttft 2000 ms, tpot 50 ms");
  EXPECT_EQ(rates.seed, 3u);
  EXPECT_EQ(rates.model, "m");
  EXPECT_EQ(rates.connections_max, 11u);
  EXPECT_TRUE(rates.json && rates.check && !rates.overload);
  EXPECT_EQ(parsed<ServeCommand>(with({"--concurrency", "4"})).concurrency, 4u);
  const auto overload = parsed<ServeCommand>(with({"--overload"}));
  EXPECT_TRUE(overload.overload);
  EXPECT_EQ(overload.window, Duration(std::chrono::seconds(30)));
  EXPECT_EQ(overload.lengths.text(), "fixed:256 > fixed:32");
  EXPECT_THAT(refused(serve), HasSubstr("one of --rate"));
  EXPECT_THAT(refused(with({"--overload", "--rate", "1"})), HasSubstr("one of --rate"));
  EXPECT_THAT(refused(with({"--rate", "0"})), HasSubstr("--rate"));
  EXPECT_THAT(refused(with({"--rate", "1", "--slo", "ttft"})), HasSubstr("--slo"));
  EXPECT_THAT(refused(with({"--rate", "1", "--prompt-tokens", "7"})), HasSubstr("--prompt-tokens"));
  EXPECT_THAT(refused(with({"--rate", "1", "--lengths", "/nowhere"})), HasSubstr("--lengths /nowhere"));
  EXPECT_THAT(refused({"bench", "serve", "--rate", "1"}), HasSubstr("--url is required"));
  EXPECT_THAT(refused({"bench", "serve", "--rate", "1", "--url", "https://a:1"}), HasSubstr("--url"));
  EXPECT_THAT(refused({"bench", "kv", "serve", "--rate", "1", "--url", "http://a:1"}),
              HasSubstr("one thing"));
}

TEST(Options, AMissedBarIsAnErrorOnlyWhereItIsChecked) {
  bench::Record missed{.bench = "handoff", .name = "x", .unit = "GB/s"};
  missed.failure = "peer lost";
  EXPECT_EQ(bench_exit_code({missed}, false), kExitOk);
  EXPECT_EQ(bench_exit_code({missed}, true), kExitBarMissed);
  EXPECT_EQ(bench_exit_code({}, true), kExitOk);
}

TEST(Options, HelpHasExamplesEverywhereAndExitCodesAtTheTop) {
  const std::vector<std::vector<std::string>> commands = {
      {"up"}, {"worker"}, {"router"}, {"kv", "explain"}, {"bench"}, {"bench", "serve"}};
  for (std::vector<std::string> command : commands) {
    command.push_back("--help");
    const Parsed help = parse(command);
    EXPECT_EQ(help.exit_code, kExitOk);
    EXPECT_FALSE(help.command.has_value());
    EXPECT_THAT(help.text, HasSubstr("Examples:\n  isthmus ")) << command.front();
  }
  const Parsed help = parse({"--help"});
  EXPECT_THAT(help.text, AllOf(HasSubstr("Exit codes:"), HasSubstr("probe failed")));
  EXPECT_THAT(parse({"--version"}).text, HasSubstr("isthmus 0."));
}

TEST(Options, FleetCheckInspectAndTopAreRead) {
  const auto check =
      std::get<FleetCheckCommand>(*parse({"fleet", "check", "f.yaml", "--live", "--json"}).command);
  EXPECT_EQ(check.fleet_file, "f.yaml");
  EXPECT_TRUE(check.live && check.json);
  EXPECT_EQ(std::get<InspectCommand>(*parse({"kv", "inspect", "http://a:1"}).command).target, "http://a:1");
  const auto top = std::get<TopCommand>(
      *parse({"top", "a:1", "b:2", "--fleet", "f", "--router", "r:3", "--interval", "500", "--once"})
           .command);
  EXPECT_EQ(top.urls, (std::vector<std::string>{"a:1", "b:2"}));
  EXPECT_EQ(top.router_url, "r:3");
  EXPECT_EQ(top.interval_ms, 500u);
  EXPECT_TRUE(top.once);
  EXPECT_EQ(parse({"top"}).exit_code, kExitUsage);
  EXPECT_EQ(parse({"fleet"}).exit_code, kExitUsage);
  EXPECT_EQ(parse({"fleet", "check"}).exit_code, kExitUsage);
}

}  // namespace
}  // namespace isthmus::cli
