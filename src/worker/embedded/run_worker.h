// SPDX-License-Identifier: Apache-2.0
// The worker program with the engines that are built in.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace isthmus::worker {

struct WorkerOptions {
  std::string engine;                                    // "llamacpp", "openvino"
  std::string kv_type;                                   // "f16", "u8", …; "" for the engine's default.
  std::string role = "both";                             // "prefill", "decode", "both"
  std::string model_path;                                // A GGUF file.
  std::string listen = "127.0.0.1:0";                    // HTTP.
  std::string agent_listen = "127.0.0.1:0";              // Handoffs, by transports that reach other hosts.
  std::vector<std::string> transports = {"shm", "tcp"};  // Of handoffs, in order of preference.
  std::string fleet_file;    // Key and policies; "": a key of its own, so no peer but itself.
  std::string name;          // Unique in the fleet; "" for engine and process id.
  std::string lineage;       // Of the descriptor; "": what the fleet file says, or the file's own.
  std::string served_model;  // As clients name it; "" for the fleet's only model.
  std::uint32_t threads = 1;
  // Of the engine's arithmetic: "native", "avx512", "avx2", "portable"; refused by name where an engine
  // can't.
  std::string isa = "native";
  std::string activations = "f32";  // Of OpenVINO: "int8" rounds them, which is faster and less exact.
  std::uint64_t kv_tokens = 16384;  // KV memory, of all sequences together.
  // Room beside that for blocks of sequences that wait. Not given: half of kv_tokens where an engine can and
  // something is decoded, else 0.
  std::optional<std::uint64_t> parked_tokens{};
  std::uint32_t sequences_max = 8;
  std::uint32_t step_tokens =
      512;  // Of one step; as long as it takes, answers under way wait for their next token.
  std::uint32_t request_timeout_s = 120;
  double queue_wait_s = 30;         // For a place in the engine; a request that gets none in time is refused.
  std::uint32_t lease_ms = 10'000;  // Of handoffs.
  std::uint32_t drain_s = 30;       // After SIGTERM, for what is under way.
  std::int64_t die_with_parent = 0;  // Process id; stop when that parent ends. 0: don't.
};

// Exit codes of run_worker() and of the program.
inline constexpr int kExitOk = 0;
inline constexpr int kExitCannotStart = 3;
inline constexpr int kExitProbeFailed = 4;

// Runs until SIGINT, or until SIGTERM and what is under way has ended (drain_s; a second signal ends it at
// once). Prints `ready http://HOST:PORT agent ENDPOINT,…` on stdout when it serves, and nothing else there;
// errors and logs go to stderr.
int run_worker(const WorkerOptions& options);

}  // namespace isthmus::worker
