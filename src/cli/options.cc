// SPDX-License-Identifier: Apache-2.0
// Subcommands, options, help with examples; the one translation unit that includes CLI11.
#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <sstream>

#include "cli/kv_options.h"
#include "cli/serve_options.h"
#include "cli/version.h"

namespace isthmus::cli {
namespace {

const std::map<std::string, kv::Exactness> kExactness = {{"lossless", kv::Exactness::kLossless},
                                                         {"bounded", kv::Exactness::kBounded},
                                                         {"unqualified", kv::Exactness::kUnqualified}};

constexpr const char* kAbout =
    "Prefill and decode of large language models on unlike engines: the KV cache made by one is handed to\n"
    "another with another layout, block size and numeric format.";

constexpr const char* kExitCodes =
    "Exit codes:\n"
    "  0  done, or stopped by a signal\n"
    "  2  the command line is wrong\n"
    "  3  cannot start: a file, port, model or child process isn't as needed\n"
    "  4  probe failed: an engine's KV isn't what its descriptor says; it refuses to serve\n"
    "  5  kv explain, kv convert, kv qualify: the policy, or any, forbids it\n"
    "  6  bench --check, kv qualify: a figure misses its bar, or a case or run failed\n"
    "  7  fleet check: the file has errors; kv verify: damaged; kv diff: not the same state\n"
    "  8  sim: a rule of the protocol was broken\n"
    "\n"
    "isthmus COMMAND --help says more and gives examples.";

constexpr const char* kUpExamples =
    "Prints one line on stdout when it serves, `ready http://HOST:PORT`; Ctrl-C stops everything.\n"
    "\n"
    "Examples:\n"
    "  isthmus up                                                  llamacpp:f16 to openvino:u8 on port 8000\n"
    "  isthmus up --decode openvino:f32 --listen 127.0.0.1:0       another format, a free port\n"
    "  isthmus up --model my.gguf --policy unqualified             a model without qualification record\n"
    "  isthmus up --decode-activations int8 --policy unqualified   faster and less exact products\n"
    "  curl -N http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\\n"
    "    -d '{\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'";

constexpr const char* kWorkerExamples =
    "Prints one line on stdout when it serves, `ready http://HOST:PORT agent ENDPOINT,...`.\n"
    "\n"
    "Examples:\n"
    "  isthmus worker --engine llamacpp --role prefill --model m.gguf --fleet fleet.yaml --name p1 \\\n"
    "    --listen 0.0.0.0:8001 --agent-listen 10.0.1.1:7001\n"
    "  isthmus worker --engine openvino --kv u8 --role decode --model m.gguf --fleet fleet.yaml --name d1 "
    "\\\n"
    "    --listen 0.0.0.0:8002 --agent-listen 10.0.2.1:7001\n"
    "  isthmus worker --engine llamacpp --model m.gguf --listen 127.0.0.1:8003       alone, without a fleet";

constexpr const char* kRouterExamples =
    "Prints one line on stdout when it listens, `ready http://HOST:PORT`. GET /isthmus/workers says what it\n"
    "thinks of each worker, GET /metrics counts.\n"
    "\n"
    "Examples:\n"
    "  isthmus router --fleet deploy/demo/fleet.yaml\n"
    "  isthmus router --fleet fleet.yaml --listen 0.0.0.0:8080 --queue 1000";

constexpr const char* kExplainExamples =
    "Examples:\n"
    "  isthmus kv explain llamacpp:f16 openvino:u8 --policy unqualified\n"
    "  isthmus kv explain llamacpp:f16 openvino:f32 --model m.gguf      with the model's identity and "
    "geometry\n"
    "  isthmus kv explain llamacpp:f16 openvino:u8 --model m.gguf --fleet fleet.yaml\n"
    "  isthmus kv explain a.kvs b.kvs --json                            of two files\n"
    "  isthmus kv explain llamacpp:f16 openvino:u8 --policy unqualified --prices reference --tokens 4096";

constexpr const char* kBenchAbout =
    "Measure the crossing, each figure beside a reference in the same run; or a server under load.\n"
    "  handoff    two processes with real agents over loopback, digests and verification inside the time\n"
    "  kv         packing, placing and reading back on one thread\n"
    "  plan       planning with its proof, and finding runs of tokens\n"
    "  serve      a server of OpenAI's API under load: isthmus bench serve --help";

constexpr const char* kBenchExamples =
    "Examples:\n"
    "  isthmus bench handoff\n"
    "  isthmus bench handoff --case u8 --case empty --runs 15      some cases, more repetitions\n"
    "  isthmus bench kv --size 64 --json                           one JSON object a line\n"
    "  isthmus bench handoff --check                               exit code 6 if a bar is missed";

constexpr const char* kFleetCheckExamples =
    "Says what is wrong (errors) or doubtful (warnings) with line, field and what to do. Exit code 0 "
    "without\n"
    "errors, 7 with errors, 3 if the file can't be read.\n"
    "\n"
    "Examples:\n"
    "  isthmus fleet check fleet.yaml\n"
    "  isthmus fleet check fleet.yaml --live         asks each worker: is it there, and which pairs may hand "
    "over?\n"
    "  isthmus fleet check fleet.yaml --live --json  one JSON object";

constexpr const char* kInspectExamples =
    "Examples:\n"
    "  isthmus kv inspect http://127.0.0.1:8002\n"
    "  isthmus kv inspect a.kvs                             whose state a file holds, and which tokens\n"
    "  isthmus kv inspect http://127.0.0.1:8002 --json      the worker's GET /state as it is (spec/state.md)";

constexpr const char* kDoctorPairExamples =
    "The prefill worker computes a prompt and hands its state over; the decode worker compares each layer "
    "with\n"
    "the state that it computes itself. That catches what descriptors can't tell: weights of another model "
    "of\n"
    "the same shape, a wrong rope base, a scale applied twice, swapped layers. Exit code 0 if they agree, 7 "
    "if\n"
    "not, 3 if there is no answer.\n"
    "\n"
    "Examples:\n"
    "  isthmus doctor pair http://127.0.0.1:8001 http://127.0.0.1:8002\n"
    "  isthmus doctor pair --json http://p:8001 http://d:8001   one JSON object, each layer's difference in "
    "it\n"
    "  isthmus doctor pair --prompt \"$(cat my.txt)\" http://p:8001 http://d:8001";

constexpr const char* kTopExamples =
    "Examples:\n"
    "  isthmus top --fleet fleet.yaml --router http://127.0.0.1:8000\n"
    "  isthmus top http://127.0.0.1:8001 http://127.0.0.1:8002\n"
    "  isthmus top --fleet fleet.yaml --once                one picture, after one interval\n"
    "  isthmus top --fleet fleet.yaml --json                one JSON object an interval";

constexpr const char* kSimExamples =
    "Two producers and two consumers under virtual time: frames are lost, repeated and late, links stand "
    "still,\n"
    "agents die and stop, bits flip, memory is refused. What a seed does it does again; a rule that is "
    "broken is\n"
    "told with its seed.\n"
    "\n"
    "Examples:\n"
    "  isthmus sim handoff --seeds 1000\n"
    "  isthmus sim handoff --first 17 --seeds 1         that seed alone\n"
    "  isthmus sim handoff --seeds 10000 --jobs 8       more; Ctrl-C ends it, and tells what was done\n"
    "  isthmus sim handoff --coverage                   which states each event has met\n"
    "  isthmus sim handoff --twice --json               each seed twice, its traces compared; one JSON "
    "object";

// Texts as typed, before they are checked.
struct Texts {
  std::string prefill = "llamacpp:f16", decode = "openvino:u8", listen = "127.0.0.1:8000";
  std::string up_policy = "bounded", explain_policy;
  std::uint64_t bench_mib = 256;
};

void add_queue_wait(CLI::App& app, double& seconds) {
  app.add_option(
         "--queue-wait", seconds,
         "That a request may wait for a place in an engine, then 429; less than the time that a first "
         "token may take")
      ->check(CLI::Range(0.001, 86'400.0))
      ->type_name("SECONDS")
      ->capture_default_str();
}

void add_up(CLI::App& app, UpCommand& up, Texts& texts) {
  app.add_option("--prefill", texts.prefill, "Engine and KV type of the prefill worker")
      ->type_name("ENGINE[:KV]")
      ->capture_default_str();
  app.add_option("--decode", texts.decode, "Engine and KV type of the decode worker")
      ->type_name("ENGINE[:KV]")
      ->capture_default_str();
  app.add_option("--listen", texts.listen, "Where the router serves; port 0 is a free one")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--model", up.model_path, "GGUF file; the small test model if not given")->type_name("FILE");
  app.add_option("--served-model", up.served_model, "The model's name for clients")->type_name("NAME");
  app.add_option("--policy", texts.up_policy, "What the handoff may change: lossless, bounded, unqualified")
      ->check(CLI::IsMember(kExactness))
      ->type_name("POLICY")
      ->capture_default_str();
  app.add_option("--threads", up.threads, "Threads of each worker; half of the processors if not given")
      ->check(CLI::Range(1, 512));
  const auto activations = [&app](const char* option, const char* whose, std::string& text) {
    app.add_option(
           option, text,
           fmt::format("Of the {} worker, if its engine is OpenVINO: f32, or int8 (see isthmus worker "
                       "--help), for which there is no built-in record: --policy unqualified",
                       whose))
        ->check(CLI::IsMember({"f32", "int8"}))
        ->type_name("TYPE")
        ->capture_default_str();
  };
  activations("--prefill-activations", "prefill", up.prefill_activations);
  activations("--decode-activations", "decode", up.decode_activations);
  add_queue_wait(app, up.queue_wait_s);
  app.footer(kUpExamples);
}

// What the engine has, and how much of it.
void add_worker_engine(CLI::App& app, WorkerCommand& worker) {
  app.add_option("--threads", worker.threads, "Of the engine")
      ->check(CLI::Range(1, 512))
      ->capture_default_str();
  app.add_option("--isa", worker.isa,
                 "Instruction set of the engine, to stand in for another processor: native, avx512 (no AMX), "
                 "avx2, portable")
      ->check(CLI::IsMember({"native", "avx512", "avx2", "portable"}))
      ->type_name("SET")
      ->capture_default_str();
  app.add_option("--activations", worker.activations,
                 "Of OpenVINO: f32, or int8 (rounded for products with weights in 8 bits, as of a Q8_0 file: "
                 "twice as fast, less exact, a recipe of its own to be qualified)")
      ->check(CLI::IsMember({"f32", "int8"}))
      ->type_name("TYPE")
      ->capture_default_str();
  app.add_option("--kv-tokens", worker.kv_tokens, "KV memory, in tokens of all sequences together")
      ->check(CLI::Range(64, 1 << 24))
      ->capture_default_str();
  app.add_option("--parked-tokens", worker.parked_tokens,
                 "Room beside it for what of sequences that wait is parked, in tokens; openvino: half of "
                 "--kv-tokens, for --role prefill 0. 0: a request has all it may need before it begins")
      ->check(CLI::Range(0, 1 << 24))
      ->type_name("N");
  app.add_option("--sequences", worker.sequences_max, "Sequences at once")
      ->check(CLI::Range(1, 255))
      ->capture_default_str();
  app.add_option(
         "--step-tokens", worker.step_tokens,
         "Of one forward, prompts and answers together. While prompts are computed, answers under way "
         "get a token a step: fewer make their pauses shorter, and prompts slower")
      ->check(CLI::Range(4, 512))
      ->capture_default_str();
}

void add_worker(CLI::App& app, WorkerCommand& worker) {
  app.add_option("--engine", worker.engine, "llamacpp or openvino")
      ->required()
      ->check(CLI::IsMember({"llamacpp", "openvino"}))
      ->type_name("ENGINE");
  app.add_option("--role", worker.role, "prefill, decode or both")
      ->check(CLI::IsMember({"prefill", "decode", "both"}))
      ->type_name("ROLE")
      ->capture_default_str();
  app.add_option("--model", worker.model_path, "GGUF file")->required()->type_name("FILE");
  app.add_option("--kv", worker.kv_type,
                 "KV type: f16, f32, bf16, u8, u4, ...; the engine's usual one if not given")
      ->type_name("TYPE");
  app.add_option("--listen", worker.listen, "HTTP")->type_name("HOST:PORT")->capture_default_str();
  app.add_option("--agent-listen", worker.agent_listen, "Handoffs; peers must be able to reach it")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--transports", worker.transports,
                 "Of handoffs, in order of preference: shm (same host, same user), tcp")
      ->delimiter(',')
      ->check(CLI::IsMember({"shm", "tcp"}))
      ->type_name("LIST")
      ->capture_default_str();
  app.add_option("--fleet", worker.fleet_file, "Fleet file: key and policies")->type_name("FILE");
  app.add_option("--name", worker.name, "Unique in the fleet")->type_name("NAME");
  app.add_option("--served-model", worker.served_model, "The model's name for clients and in the fleet file")
      ->type_name("NAME");
  add_worker_engine(app, worker);
  app.add_option("--request-timeout", worker.request_timeout_s, "Of one request, seconds")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  add_queue_wait(app, worker.queue_wait_s);
  app.add_option("--lease", worker.lease_ms, "Of a handoff, milliseconds")
      ->check(CLI::Range(100, 600'000))
      ->capture_default_str();
  app.add_option("--drain", worker.drain_s,
                 "After SIGTERM, for requests under way, seconds; Ctrl-C ends at once")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  app.add_option("--die-with-parent", worker.die_with_parent, "Stop when the parent process of this id ends")
      ->check(CLI::PositiveNumber)
      ->type_name("PID");
  app.footer(kWorkerExamples);
}

void add_router(CLI::App& app, RouterCommand& router, Texts& texts) {
  app.add_option("--fleet", router.fleet_file, "Fleet file: models and workers")
      ->required()
      ->type_name("FILE");
  app.add_option("--listen", texts.listen, "Where it serves; port 0 is a free one")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  app.add_option("--health-interval", router.health_interval_ms,
                 "Between two checks of a worker, milliseconds")
      ->check(CLI::Range(10, 600'000))
      ->capture_default_str();
  app.add_option("--queue", router.queue_max, "Requests that may wait; more get 429")
      ->check(CLI::Range(0, 100'000))
      ->capture_default_str();
  app.add_option("--request-timeout", router.request_timeout_s, "Of one request, seconds")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  add_queue_wait(app, router.queue_wait_s);
  app.footer(kRouterExamples);
}

void add_explain(CLI::App& app, ExplainCommand& explain, Texts& texts) {
  app.add_option("A", explain.source, "Storage of the prefill engine, llamacpp:f16, ..., or a .kvs file")
      ->required();
  app.add_option("B", explain.target, "Storage of the decode engine, openvino:u8, ..., or a .kvs file")
      ->required();
  app.add_option("--policy", texts.explain_policy, "lossless, bounded or unqualified")
      ->check(CLI::IsMember(kExactness))
      ->type_name("POLICY");
  app.add_option("--fleet", explain.fleet_file, "Fleet file: the policy of its first model, its records")
      ->type_name("FILE");
  app.add_option("--model", explain.model_path, "GGUF file: identity and geometry")->type_name("FILE");
  app.add_option("--layers", explain.layers, "Without --model")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--heads", explain.heads, "KV heads, without --model")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--dim", explain.dim, "Elements of one head's row, without --model")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--prices", explain.prices,
                 "Rates and loads: where each step would run, and its price. A file, or \"reference\"")
      ->type_name("FILE");
  app.add_option("--tokens", explain.tokens, "That move, with --prices reference")
      ->check(CLI::Range(std::uint64_t{1}, kv::kPositionMax))
      ->capture_default_str();
  app.add_flag("--json", explain.json, "One JSON object");
  app.footer(kExplainExamples);
}

void add_bench(CLI::App& app, BenchCommand& bench, Texts& texts) {
  app.add_option("WHAT", bench.what, "handoff, kv or plan")->check(CLI::IsMember({"handoff", "kv", "plan"}));
  app.add_option("--size", texts.bench_mib, "Of the state that crosses, MiB")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
  app.add_option("--runs", bench.options.runs, "Repetitions; medians are told")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--case", bench.options.cases, "Only cases whose name contains this; may be repeated")
      ->type_name("TEXT");
  app.add_flag("--json", bench.json, "One JSON object a line");
  app.add_flag("--check", bench.check, "Fail if a bar is missed");
  app.footer(kBenchExamples);
}

void add_fleet_check(CLI::App& app, FleetCheckCommand& check) {
  app.add_option("FILE", check.fleet_file, "Fleet file")->required();
  app.add_flag("--live", check.live, "Ask the workers too");
  app.add_flag("--json", check.json, "One JSON object");
  app.footer(kFleetCheckExamples);
}

void add_inspect(CLI::App& app, InspectCommand& inspect) {
  app.add_option("WHAT", inspect.target, "A worker, http://HOST:PORT, or a .kvs file")->required();
  app.add_flag("--json", inspect.json, "One JSON object");
  app.footer(kInspectExamples);
}

void add_doctor_pair(CLI::App& app, DoctorPairCommand& pair) {
  app.add_option("PREFILL", pair.prefill_url, "Prefill worker, http://HOST:PORT")->required();
  app.add_option("DECODE", pair.decode_url, "Decode worker, http://HOST:PORT")->required();
  app.add_option("--prompt", pair.prompt, "Text to compute, 512 tokens at most; else one of the program's")
      ->type_name("TEXT");
  app.add_flag("--json", pair.json, "One JSON object");
  app.footer(kDoctorPairExamples);
}

void add_top(CLI::App& app, TopCommand& top) {
  app.add_option("URL", top.urls, "Workers: http://HOST:PORT ...");
  app.add_option("--fleet", top.fleet_file, "Fleet file: its workers")->type_name("FILE");
  app.add_option("--router", top.router_url, "Its queue is shown too")->type_name("URL");
  app.add_option("--interval", top.interval_ms, "Between two pictures, milliseconds")
      ->check(CLI::Range(100, 600'000))
      ->capture_default_str();
  app.add_flag("--once", top.once, "One picture");
  app.add_flag("--json", top.json, "JSON instead of a picture");
  app.footer(kTopExamples);
}

void add_sim_handoff(CLI::App& app, SimCommand& sim) {
  app.add_option("--seeds", sim.options.seeds, "How many; each is about 60 requests")
      ->check(CLI::Range(1, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--first", sim.options.first, "The first seed")->capture_default_str();
  app.add_flag("--twice", sim.options.twice, "Run each seed again; another trace is a violation");
  app.add_option("--jobs", sim.options.jobs, "Threads; they change no result")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  app.add_flag("--coverage", sim.coverage, "How often each event met each state of the cores");
  app.add_flag("--json", sim.json, "One JSON object");
  app.footer(kSimExamples);
}

Parsed usage_error(std::string_view command, std::string_view text) {
  return {{}, kExitUsage, fmt::format("isthmus {}: {}\nTry: isthmus {} --help\n", command, text, command)};
}

Parsed checked_up(UpCommand up, const Texts& texts) {
  const auto prefill = parse_engine_choice(texts.prefill);
  if (!prefill.ok()) return usage_error("up", "--prefill " + prefill.error().detail);
  const auto decode = parse_engine_choice(texts.decode);
  if (!decode.ok()) return usage_error("up", "--decode " + decode.error().detail);
  if (const Status able = check_activations(*prefill, up.prefill_activations); !able.ok())
    return usage_error("up", "--prefill-activations " + able.error().detail);
  if (const Status able = check_activations(*decode, up.decode_activations); !able.ok())
    return usage_error("up", "--decode-activations " + able.error().detail);
  const auto listen = net::Endpoint::parse(texts.listen);
  if (!listen.ok()) return usage_error("up", "--listen: " + listen.error().detail);
  up.prefill = *prefill;
  up.decode = *decode;
  up.listen = *listen;
  up.exactness = kExactness.at(texts.up_policy);
  return {std::move(up), kExitOk, ""};
}

Parsed checked_router(RouterCommand router, const Texts& texts) {
  const auto listen = net::Endpoint::parse(texts.listen);
  if (!listen.ok()) return usage_error("router", "--listen: " + listen.error().detail);
  router.listen = *listen;
  return {std::move(router), kExitOk, ""};
}

Parsed checked_worker(WorkerCommand worker) {
  for (const auto& [option, text] :
       {std::pair{"--listen", &worker.listen}, {"--agent-listen", &worker.agent_listen}}) {
    const auto endpoint = net::Endpoint::parse(*text);
    if (!endpoint.ok()) return usage_error("worker", fmt::format("{}: {}", option, endpoint.error().detail));
  }
  return {std::move(worker), kExitOk, ""};
}

Parsed checked_top(TopCommand top) {
  if (top.fleet_file.empty() && top.urls.empty())
    return usage_error("top", "name a fleet file with --fleet, or workers by URL");
  return {std::move(top), kExitOk, ""};
}

std::optional<Parsed> checked_kv(KvOptions& options) {
  std::string error;
  if (const std::optional<LiveCommand> live = options.parsed_live(error); live.has_value()) {
    if (!error.empty()) return Parsed{{}, kExitUsage, fmt::format("isthmus {}\n", error)};
    return Parsed{*live, kExitOk, ""};
  }
  if (const std::optional<QualifyCommand> qualify = options.parsed_qualify(error); qualify.has_value()) {
    if (!error.empty()) return Parsed{{}, kExitUsage, fmt::format("isthmus {}\n", error)};
    return Parsed{*qualify, kExitOk, ""};
  }
  const KvCommand* kv = options.parsed(error);
  if (kv == nullptr) return std::nullopt;
  if (!error.empty()) return Parsed{{}, kExitUsage, fmt::format("isthmus {}\n", error)};
  return Parsed{*kv, kExitOk, ""};
}

Parsed checked_bench(BenchCommand bench, const ServeOptions& options, const Texts& texts) {
  std::string error;
  std::optional<ServeCommand> serve = options.parsed(error);
  if (!error.empty()) return usage_error("bench serve", error);
  if (serve.has_value() != bench.what.empty())
    return usage_error("bench", "name one thing to measure: handoff, kv, plan or serve");
  if (serve.has_value()) return {*std::move(serve), kExitOk, ""};
  bench.options.size_bytes = texts.bench_mib << 20;
  return {std::move(bench), kExitOk, ""};
}

// CLI11 reports by exceptions, help and version included.
Parsed parse_with(CLI::App& app, const std::vector<std::string>& arguments) {
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // As CLI11 wants it.
  try {
    app.parse(std::move(reversed));
    return {};
  } catch (const CLI::ParseError& failure) {
    std::ostringstream out, err;
    const int code = app.exit(failure, out, err);
    return {{}, code == 0 ? kExitOk : kExitUsage, out.str() + err.str()};
  }
}

}  // namespace

Parsed parse(const std::vector<std::string>& arguments) {
  CLI::App app{kAbout, "isthmus"};
  app.set_version_flag("--version", fmt::format("isthmus {}", kVersion));
  app.require_subcommand(1);
  app.footer(kExitCodes);
  UpCommand up;
  RouterCommand router;
  WorkerCommand worker;
  ExplainCommand explain;
  BenchCommand bench;
  FleetCheckCommand check;
  InspectCommand inspect;
  TopCommand top;
  DoctorPairCommand pair;
  SimCommand sim;
  Texts texts;
  CLI::App* up_app =
      app.add_subcommand("up", "Start prefill worker, decode worker and router on this machine");
  add_up(*up_app, up, texts);
  CLI::App* worker_app = app.add_subcommand("worker", "Run one engine and its handoff agent");
  add_worker(*worker_app, worker);
  CLI::App* router_app = app.add_subcommand("router", "Route requests to the workers of a fleet file");
  add_router(*router_app, router, texts);
  CLI::App* kv_app = app.add_subcommand("kv", "What KV state is and how it may change");
  kv_app->require_subcommand(1);
  CLI::App* explain_app =
      kv_app->add_subcommand("explain", "May two storages share a state, and what changes?");
  add_explain(*explain_app, explain, texts);
  CLI::App* inspect_app = kv_app->add_subcommand("inspect", "What a live worker or a file holds");
  add_inspect(*inspect_app, inspect);
  KvOptions kv_options(*kv_app);
  CLI::App* fleet_app = app.add_subcommand("fleet", "Fleet files");
  fleet_app->require_subcommand(1);
  CLI::App* check_app =
      fleet_app->add_subcommand("check", "Is a fleet file right, and do its workers agree?");
  add_fleet_check(*check_app, check);
  CLI::App* top_app = app.add_subcommand("top", "Workers, handoffs in flight and ledgers, live");
  add_top(*top_app, top);
  CLI::App* doctor_app = app.add_subcommand("doctor", "Is what runs sound?");
  doctor_app->require_subcommand(1);
  CLI::App* pair_app =
      doctor_app->add_subcommand("pair", "Does a decode worker find the prefill worker's state right?");
  add_doctor_pair(*pair_app, pair);
  CLI::App* bench_app = app.add_subcommand("bench", kBenchAbout);
  add_bench(*bench_app, bench, texts);
  const ServeOptions serve_options(*bench_app);
  CLI::App* sim_app = app.add_subcommand("sim", "Simulations");
  sim_app->require_subcommand(1);
  CLI::App* sim_handoff_app =
      sim_app->add_subcommand("handoff", "The handoff's cores under faults of all kinds, in virtual time");
  add_sim_handoff(*sim_handoff_app, sim);

  Parsed parsed = parse_with(app, arguments);
  if (!parsed.text.empty() || parsed.exit_code != kExitOk) return parsed;
  if (up_app->parsed()) return checked_up(std::move(up), texts);
  if (router_app->parsed()) return checked_router(std::move(router), texts);
  if (worker_app->parsed()) return checked_worker(std::move(worker));
  if (check_app->parsed()) return {std::move(check), kExitOk, ""};
  if (inspect_app->parsed()) return {std::move(inspect), kExitOk, ""};
  if (pair_app->parsed()) return {std::move(pair), kExitOk, ""};
  if (top_app->parsed()) return checked_top(std::move(top));
  if (sim_handoff_app->parsed()) return {sim, kExitOk, ""};
  if (auto kv = checked_kv(kv_options)) return *std::move(kv);
  if (bench_app->parsed()) return checked_bench(std::move(bench), serve_options, texts);
  if (!texts.explain_policy.empty()) explain.exactness = kExactness.at(texts.explain_policy);
  return {std::move(explain), kExitOk, ""};
}

}  // namespace isthmus::cli
