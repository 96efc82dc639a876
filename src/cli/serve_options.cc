// SPDX-License-Identifier: Apache-2.0
// See serve_options.h.
#include "cli/serve_options.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "watch/fetch.h"

namespace isthmus::cli {
namespace {

constexpr const char* kAbout = "Load on a server of OpenAI's completions, and how its answers come";

constexpr const char* kExamples =
    "Requests arrive as a Poisson process of the rate, whatever the answers do, and every time counts from "
    "when\n"
    "a request was due: a server that stalls can't hide it. Each answer is checked: [DONE] at its end, and "
    "a\n"
    "usage that is what was asked for and seen. What goes wrong is counted by kind. A run whose generator "
    "was\n"
    "late or found no connection is told to be invalid. Goodput counts whole answers within --slo.\n"
    "\n"
    "Prompts are random tokens, drawn from the seed; a second run of one seed asks the same again, which a\n"
    "server with a prefix cache remembers: change --seed. Servers that know ignore_eos give exactly the "
    "asked\n"
    "lengths; with others an answer may end before, which is told.\n"
    "\n"
    "--overload finds the capacity by concurrency, then offers 0.5, 1, 2 and 5 times that, for --duration "
    "each.\n"
    "\n"
    "Examples:\n"
    "  isthmus bench serve --url http://127.0.0.1:8000 --rate 2 --slo ttft=2s,tpot=100ms\n"
    "  isthmus bench serve --url http://127.0.0.1:8000 --rates 1,2,4,8 --duration 60 \\\n"
    "    --prompt-tokens lognormal:512,0.8 --output-tokens uniform:16-256\n"
    "  isthmus bench serve --url http://127.0.0.1:8000 --concurrency 8        closed loop\n"
    "  isthmus bench serve --url http://127.0.0.1:8000 --overload --slo ttft=5s --check\n"
    "  isthmus bench serve --url http://127.0.0.1:8000 --rates 1,2,4 --json > runs.jsonl\n"
    "  bench/serve_plot.py runs.svg runs.jsonl                                latencies and goodput by rate";

}  // namespace

ServeOptions::ServeOptions(CLI::App& bench) : app_(bench.add_subcommand("serve", kAbout)) {
  app_->add_option("--url", url_, "Of the server")->required()->type_name("http://HOST:PORT");
  app_->add_option("--model", command_.model, "Its name; the first that the server lists if not given")
      ->type_name("NAME");
  add_load(*app_);
  add_answers(*app_);
  app_->footer(kExamples);
}

void ServeOptions::add_load(CLI::App& app) {
  app.add_option("--rate,--rates", command_.rates, "Requests a second, open loop; several: one run each")
      ->delimiter(',')
      ->type_name("R[,R...]");
  app.add_option("--concurrency", command_.concurrency, "Requests at all times, closed loop")
      ->check(CLI::Range(1, 65'536))
      ->type_name("N");
  app.add_flag("--overload", command_.overload, "Find the capacity, then offer up to 5 times that");
  app.add_option("--duration", duration_s_, "Seconds in which requests arrive, of each run")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  app.add_option("--prompt-tokens", prompt_, "fixed:N, uniform:A-B or lognormal:MEAN,SIGMA")
      ->type_name("DIST")
      ->capture_default_str();
  app.add_option("--output-tokens", output_, "Likewise")->type_name("DIST")->capture_default_str();
  app.add_option("--lengths", pairs_file_, "Instead of both: lines PROMPT OUTPUT, taken at random")
      ->type_name("FILE");
  app.add_option("--seed", command_.seed, "Of arrivals, lengths and prompts")->capture_default_str();
}

void ServeOptions::add_answers(CLI::App& app) {
  app.add_option("--slo", slo_, "What a good answer keeps to: ttft=2s,tpot=50ms,e2e=10s, any of them")
      ->type_name("LIST");
  app.add_option("--timeout", timeout_s_, "Of a request, seconds from when it was due")
      ->check(CLI::Range(0.1, 86'400.0))
      ->capture_default_str();
  app.add_option("--connections", command_.connections_max, "At once; a request that finds none isn't sent")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  app.add_flag("--json", command_.json, "One JSON object a run, a line each");
  app.add_flag("--check", command_.check, "Fail if a run isn't valid, or goodput falls under overload");
}

std::optional<ServeCommand> ServeOptions::parsed(std::string& error) const {
  if (!app_->parsed()) return std::nullopt;
  ServeCommand command = command_;
  error = read(command);
  return command;
}

std::string ServeOptions::read(ServeCommand& command) const {
  const auto endpoint = watch::parse_url(url_);
  if (!endpoint.ok()) return "--url: " + endpoint.error().detail;
  command.to = *endpoint;
  const int ways =
      (command.rates.empty() ? 0 : 1) + (command.concurrency > 0 ? 1 : 0) + (command.overload ? 1 : 0);
  if (ways != 1) return "give one of --rate, --concurrency and --overload";
  for (const double rate : command.rates) {
    const auto arrivals = load::poisson_arrivals(rate, std::chrono::seconds(1), {});
    if (!arrivals.ok()) return "--rate: " + arrivals.error().detail;
  }
  const auto slo = load::Slo::parse(slo_);
  if (!slo.ok()) return "--slo: " + slo.error().detail;
  command.slo = *slo;
  const auto duration = [](double seconds) {
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  };
  command.window = duration(duration_s_);
  command.timeout = duration(timeout_s_);
  if (!pairs_file_.empty()) {
    std::ifstream file(pairs_file_);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    auto lengths = load::Lengths::of_pairs(text);
    if (!file || !lengths.ok())
      return fmt::format("--lengths {}: {}", pairs_file_, file ? lengths.error().detail : "can't be read");
    command.lengths = *std::move(lengths);
    return "";
  }
  auto prompt = load::Distribution::parse(prompt_);
  if (!prompt.ok()) return "--prompt-tokens " + prompt.error().detail;
  auto output = load::Distribution::parse(output_);
  if (!output.ok()) return "--output-tokens " + output.error().detail;
  command.lengths = load::Lengths(*std::move(prompt), *std::move(output));
  return "";
}

}  // namespace isthmus::cli
