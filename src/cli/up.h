// SPDX-License-Identifier: Apache-2.0
// `isthmus up`: two worker processes and a router on this machine.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/metrics.h"
#include "base/status.h"
#include "cli/options.h"
#include "net/loop.h"
#include "net/stream.h"

namespace isthmus::cli {

struct UpSetup {
  UpCommand command;
  std::string program = "/proc/self/exe";              // Run as `program worker …`.
  Duration ready_timeout = std::chrono::seconds(300);  // Loading and probing; over it, exit code 3.
  Duration stop_timeout = std::chrono::seconds(5);     // From SIGTERM to SIGKILL.
};

struct UpEvents {
  std::function<void(const net::Endpoint& router)> on_ready;  // Once, when requests are served.
  std::function<void(std::string)> on_note;                   // A line for people.
  std::function<void(int exit_code)> on_end;                  // Once, when all is stopped.
};

// A folder of its own holds key and fleet file and goes with it. A worker that dies while serving is reported
// and stays away; the router goes on with what is possible. When both are gone, it ends with exit code 3. A
// worker whose probe fails ends it with exit code 4. Thread: the loop's; callbacks never come from within
// start() or stop().
class Up {
 public:
  // Errors: not_found (the model file), unavailable (folder, process, the address to listen at).
  static Result<std::unique_ptr<Up>> start(net::Loop& loop, UpSetup setup, UpEvents events);
  virtual ~Up() = default;
  virtual void stop() = 0;
};

// The model's name for clients: "SmolLM2-135M-Instruct.Q4_1.gguf" is "smollm2-135m-instruct".
std::string served_model_of(const std::string& model_path);

}  // namespace isthmus::cli
