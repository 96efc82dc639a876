// SPDX-License-Identifier: Apache-2.0
// The command line as plain values; CLI11 stays behind this header.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "bench/bench.h"
#include "cli/kv_commands.h"
#include "cli/kv_live.h"
#include "cli/kv_qualify.h"
#include "cli/serve_command.h"
#include "kv/negotiate.h"
#include "net/stream.h"
#include "sim/runs.h"
#include "worker/embedded/run_worker.h"

namespace isthmus::cli {

// Exit codes of the program; run_worker() gives 0, 3 and 4 too.
inline constexpr int kExitOk = 0;
inline constexpr int kExitUsage = 2;        // The command line is wrong.
inline constexpr int kExitCannotStart = 3;  // A file, port, model or child process isn't as needed.
inline constexpr int kExitProbeFailed = 4;  // An engine's KV isn't what its descriptor says.
inline constexpr int kExitRejected = 5;     // `kv explain`, `kv convert`: the policy forbids it.
inline constexpr int kExitFindings = 7;     // `fleet check`, `doctor`, `kv verify`, `kv diff`: findings.
inline constexpr int kExitBarMissed =
    6;  // `bench --check`, `kv qualify`: a missed bar, a failed case, an invalid run.
inline constexpr int kExitViolated = 8;  // `sim`: a rule of the protocol was broken.

// An engine and its KV type, as in "openvino:u8".
struct EngineChoice {
  std::string engine, kv_type;
  std::string text() const { return engine + ":" + kv_type; }
};

struct UpCommand {
  EngineChoice prefill{"llamacpp", "f16"};
  EngineChoice decode{"openvino", "u8"};
  std::string prefill_activations = "f32", decode_activations = "f32";  // "f32", "int8": as of a worker.
  net::Endpoint listen{"127.0.0.1", 8000};
  std::string model_path;
  std::string served_model;  // "" for one made of the file's name.
  kv::Exactness exactness = kv::Exactness::kBounded;
  std::uint32_t threads = 0;  // Of each worker; 0 for half of the processors.
  double queue_wait_s = 30;   // For a place, of a request.
};

struct RouterCommand {
  std::string fleet_file;
  net::Endpoint listen{"127.0.0.1", 8000};
  std::uint32_t health_interval_ms = 1000;
  std::uint32_t queue_max = 256;
  std::uint32_t request_timeout_s = 600;
  double queue_wait_s = 30;  // For a place, here and at the workers together.
};

struct ExplainCommand {
  std::string source, target;              // Names of storages, "llamacpp:f16", or .kvs files.
  std::string fleet_file;                  // Policy and records; "" for `exactness` and the built-in records.
  std::optional<kv::Exactness> exactness;  // Over the fleet file's.
  std::string model_path;                  // Identity and geometry; "" for the geometry below.
  std::uint32_t layers = 30, heads = 3, dim = 64;  // SmolLM2-135M.
  // A snapshot's text (kv/prices.h), or "reference" for Prices::reference() of `tokens`; "": no prices.
  std::string prices;
  std::uint64_t tokens = 1024;
  bool json = false;
};

struct BenchCommand {
  std::string what;  // "handoff", "kv" or "plan".
  bench::Options options;
  bool json = false;   // One object a line instead of a table.
  bool check = false;  // A missed bar is an error.
};

struct FleetCheckCommand {
  std::string fleet_file;
  bool live = false;  // Ask the workers too.
  bool json = false;
};

struct InspectCommand {
  std::string target;  // A worker's URL, or a .kvs file.
  bool json = false;
};

struct DoctorPairCommand {
  std::string prefill_url, decode_url;
  std::string prompt;  // "" for the program's own.
  bool json = false;
};

struct TopCommand {
  std::string fleet_file;
  std::vector<std::string> urls;  // Of workers, beside the fleet's.
  std::string router_url;
  std::uint32_t interval_ms = 1000;
  bool once = false, json = false;
};

struct SimCommand {
  handoff::sim::RunOptions options;
  bool json = false;      // One object instead of text.
  bool coverage = false;  // The table of states and events too.
};

using WorkerCommand = worker::WorkerOptions;
using Command = std::variant<LiveCommand, QualifyCommand, UpCommand, RouterCommand, WorkerCommand,
                             ExplainCommand, BenchCommand, ServeCommand, FleetCheckCommand, InspectCommand,
                             DoctorPairCommand, TopCommand, SimCommand, KvCommand>;

struct Parsed {
  std::optional<Command> command;  // Nothing if all is said by `text`.
  int exit_code = kExitOk;
  std::string text;  // Help, version, or what is wrong with the command line.
};
// `arguments` without the program's name.
Parsed parse(const std::vector<std::string>& arguments);

// What a worker of `isthmus up` can be, in either role; "openvino" alone is its usual KV type.
// invalid_argument, with the reason and the list, otherwise.
Result<EngineChoice> parse_engine_choice(const std::string& text);
// May the worker of that choice have these activations? invalid_argument, saying which can, otherwise.
Status check_activations(const EngineChoice& choice, const std::string& activations);

}  // namespace isthmus::cli
