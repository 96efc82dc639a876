// SPDX-License-Identifier: Apache-2.0
// Stands in for `isthmus worker` in tests. What it does is said by the first word of its model file:
// serve, exit-CODE, mute (never ready), deaf (ignores SIGINT and SIGTERM).
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "cli/options.h"
#include "cli/print.h"
#include "router/shell/fake_worker.h"

namespace {

// The role decides when the file holds one word a role: "prefill=exit-4 decode=serve".
std::string behaviour_of(const isthmus::cli::WorkerCommand& command) {
  std::ifstream file(command.model_path);
  std::string word;
  while (file >> word) {
    const auto equals = word.find('=');
    if (equals == std::string::npos) return word;
    if (word.substr(0, equals) == command.role) return word.substr(equals + 1);
  }
  return "serve";
}

}  // namespace

int main(int argc, char** argv) {
  const auto parsed = isthmus::cli::parse(std::vector<std::string>(argv + 1, argv + argc));
  const auto* command = parsed.command ? std::get_if<isthmus::cli::WorkerCommand>(&*parsed.command) : nullptr;
  if (command == nullptr) {
    isthmus::cli::note_line(parsed.text);
    return isthmus::cli::kExitUsage;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != command->die_with_parent) return 1;
  const std::string behaviour = behaviour_of(*command);
  if (behaviour.starts_with("exit-")) return std::atoi(behaviour.c_str() + 5);

  isthmus::net::Loop loop;
  isthmus::router::shell::FakeWorker worker(loop, {"127.0.0.1", 0}, command->name);
  loop.on_signal([&](int) {
    if (behaviour != "deaf") loop.stop();
  });
  if (behaviour != "mute") {
    isthmus::cli::print_line("ready http://" + worker.endpoint().text() + " agent 127.0.0.1:1");
  }
  loop.run();
  return 0;
}
