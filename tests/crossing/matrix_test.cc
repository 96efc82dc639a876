// SPDX-License-Identifier: Apache-2.0
// Every pair of KV forms of both engines, each way: does it answer like its decoder alone?
// A few pairs run in CI. All of them: `make matrix`, which writes docs/crossing-matrix.md and the records of
// deploy/demo/qualification.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "crossing/measure.h"
#include "qualify/pair.h"
#include "qualify/summary.h"
#include "worker/embedded/engine_kinds.h"

namespace isthmus::crossing {
namespace {

std::vector<Form> all_forms() {
  std::vector<Form> forms;
  for (const worker::EngineKind& kind : worker::kEngineKinds) {
    for (const std::string_view kv_type : kind.kv_types)
      forms.push_back({std::string(kind.name), std::string(kv_type)});
  }
  return forms;
}

// Prefills and decoders that are measured against each other.
struct Matrix {
  std::vector<Form> prefills, decoders;
  std::vector<std::size_t> prompts;  // Indices of qualify::prompt_lengths().
};

// All forms; ISTHMUS_MATRIX_PROMPTS of the prompts, spread over the lengths, or all.
Matrix whole_matrix() {
  Matrix matrix{all_forms(), all_forms(), {}};
  const std::size_t all = qualify::prompt_lengths().size();
  const char* wanted = std::getenv("ISTHMUS_MATRIX_PROMPTS");
  const std::size_t count = wanted == nullptr ? all : std::min(all, std::stoul(wanted));
  for (std::size_t i = 0; i < count; ++i) matrix.prompts.push_back(i * all / count);
  return matrix;
}

using Key = std::pair<std::string, std::string>;  // Prefill form, decode form.
// Of each pair all prompts. What was read from files has its KLs alone.
using Figures = std::map<Key, std::vector<qualify::Measured>>;
using Summaries = std::map<Key, qualify::Summary>;

bool is_judged(const Key& key) {
  return !Form{"", key.first}.is_four_bit() && !Form{"", key.second}.is_four_bit();
}

// What one prompt's pairs had: a line each, so that processes can share the prompts and go on after a stop.
std::filesystem::path prompt_file(const std::filesystem::path& folder, std::size_t prompt) {
  return folder / fmt::format("{}.txt", prompt);
}

void write(const Figures& figures, const std::filesystem::path& path) {
  const std::filesystem::path part = path.string() + ".part";
  {
    std::ofstream file(part);
    for (const auto& [key, measured] : figures) {
      for (const qualify::Measured& one : measured)
        file << fmt::format("{} {} {} {} {}\n", key.first, key.second, one.pair.kl, one.engines.kl,
                            one.pair.first_kl);
    }
  }
  std::filesystem::rename(part, path);
}

void read_into(Figures& figures, const std::filesystem::path& path) {
  std::ifstream file(path);
  Key key;
  qualify::Measured one;
  while (file >> key.first >> key.second >> one.pair.kl >> one.engines.kl >> one.pair.first_kl)
    figures[key].push_back(one);
}

class Measurement {
 public:
  explicit Measurement(Matrix matrix) : matrix_(std::move(matrix)) {}

  // False, with the reason in the test's failures, if an engine or a crossing doesn't work.
  bool run() {
    if (!load_all()) return false;
    for (const std::size_t index : matrix_.prompts) {
      if (!measure(prompt(index), figures_)) return false;
    }
    return true;
  }

  // Prompts whose file isn't there, each into its own.
  bool run_into(const std::filesystem::path& folder) {
    if (!load_all()) return false;
    for (const std::size_t index : matrix_.prompts) {
      if (std::filesystem::exists(prompt_file(folder, index))) continue;
      Figures figures;
      if (!measure(prompt(index), figures)) return false;
      write(figures, prompt_file(folder, index));
    }
    return true;
  }

  // All prompts from their files.
  bool read(const std::filesystem::path& folder) {
    for (const std::size_t index : matrix_.prompts) read_into(figures_, prompt_file(folder, index));
    const std::size_t pairs = matrix_.prefills.size() * matrix_.decoders.size();
    EXPECT_EQ(figures_.size(), pairs);
    bool is_whole = figures_.size() == pairs;
    for (const auto& [key, measured] : figures_) {
      EXPECT_EQ(measured.size(), matrix_.prompts.size()) << key.first << " -> " << key.second;
      is_whole = is_whole && measured.size() == matrix_.prompts.size();
    }
    return is_whole && load_all();
  }

  Summaries summaries() const {
    Summaries all;
    for (const auto& [key, measured] : figures_) all.emplace(key, qualify::summarise(measured));
    return all;
  }
  const engine::Engine& engine(const std::string& form) const { return *engines_.at(form); }
  bool is_unlike(const Key& key) const {
    return engine(key.first).info().name != engine(key.second).info().name;
  }

 private:
  bool load_all() {
    for (const std::vector<Form>* forms : {&matrix_.prefills, &matrix_.decoders}) {
      for (const Form& form : *forms) {
        if (!load(form)) return false;
      }
    }
    return true;
  }

  bool load(const Form& form) {
    auto& engine = engines_[form.text()];
    if (engine) return true;
    Result<std::unique_ptr<engine::Engine>> made = make_engine(form, 1);
    EXPECT_TRUE(made.ok()) << form.text() << ": " << made.error().text();
    if (made.ok()) engine = *std::move(made);
    return engine != nullptr;
  }

  // One prompt through all pairs: each prefill runs once, each decoder alone once.
  bool measure(const Tokens& tokens, Figures& figures) {
    std::map<std::string, Tokens> forced;
    std::map<std::string, qualify::Reference> alone;
    for (const Form& decoder : matrix_.decoders) {
      engine::Engine& engine = *engines_.at(decoder.text());
      forced[decoder.text()] = own_tokens(engine, tokens);
      alone.emplace(decoder.text(), reference(engine, tokens, forced[decoder.text()]));
    }
    for (const Form& prefill : matrix_.prefills) {
      engine::Engine& engine = *engines_.at(prefill.text());
      qualify::Computed source{*engine.open(tokens.size()), tokens, {}};
      source.first_row = *qualify::run_prompt(engine, source.sequence, tokens);
      std::map<Tokens, Logits>
          going_on;  // The prefill engine alone, by what is forced; decoders share answers.
      for (const Form& decoder : matrix_.decoders) {
        const Tokens& answer = forced[decoder.text()];
        if (!going_on.contains(answer)) {
          Result<Logits> rows = cross(engine, source, engine, answer);  // On a copy of its own sequence.
          EXPECT_TRUE(rows.ok()) << prefill.text() << " -> itself: " << rows.error().text();
          if (!rows.ok()) return false;
          going_on[answer] = *std::move(rows);
        }
        Result<Logits> pair = cross(engine, source, *engines_.at(decoder.text()), answer);
        EXPECT_TRUE(pair.ok()) << prefill.text() << " -> " << decoder.text() << ": " << pair.error().text();
        if (!pair.ok()) return false;
        const qualify::Reference& own = alone.at(decoder.text());
        figures[{prefill.text(), decoder.text()}].push_back(
            {tokens.size(), own.surprise(), own.difference(*pair), own.difference(going_on[answer])});
      }
      engine.close(source.sequence);
    }
    fmt::print(stderr, "{} tokens: {} pairs measured\n", tokens.size(), figures.size());
    return true;
  }

  static Result<Logits> cross(engine::Engine& from, const qualify::Computed& source, engine::Engine& to,
                              const Tokens& forced) {
    qualify::Pair pair(from, to, kUnqualified);
    ISTHMUS_TRY(const qualify::HandedOver handed, pair.hand_over(source, source.prompt.size() + kForced));
    return qualify::rows_after(to, handed.sequence, handed.first_row, forced);
  }

  Matrix matrix_;
  std::map<std::string, std::unique_ptr<engine::Engine>> engines_;
  Figures figures_;
};

// Pairs of one engine are accepted without a record, so they must hold the bar. An unlike pair over it gets a
// record that covers nothing: `up` refuses it unless told otherwise.
void expect_bar(const Measurement& measured, const Summaries& summaries, bool unlike_too) {
  for (const auto& [key, summary] : summaries) {
    const auto& [mean, low, high] = summary.ratio;
    fmt::print("{:<28} {:<28} pair {:.3e} engines {:.3e} ratio {:.2f} [{:.2f}, {:.2f}]{}\n", key.first,
               key.second, summary.pair.kl.mean, summary.engines.kl.mean, mean, low, high,
               !is_judged(key)         ? " (four bits: reported)"
               : summary.is_within_bar ? ""
                                       : " over the bar");
    if (is_judged(key) && (unlike_too || !measured.is_unlike(key)))
      EXPECT_TRUE(summary.is_within_bar) << key.first << " -> " << key.second << ": " << mean;
  }
}

// One for each engine that decodes: its forms are the columns.
std::string tables(const Matrix& matrix, const Summaries& summaries,
                   const std::function<std::string(const qualify::Summary&)>& cell) {
  std::string out;
  for (const worker::EngineKind& kind : worker::kEngineKinds) {
    std::string rule = "|---|";
    out += fmt::format("\n| prefill \\ decode: {} |", kind.name);
    for (const std::string_view kv_type : kind.kv_types) {
      out += fmt::format(" {} |", kv_type);
      rule += "---|";
    }
    out += "\n" + rule + "\n";
    for (const Form& prefill : matrix.prefills) {
      out += fmt::format("| {} |", prefill.text());
      for (const std::string_view kv_type : kind.kv_types)
        out += fmt::format(" {} |",
                           cell(summaries.at({prefill.text(), fmt::format("{}:{}", kind.name, kv_type)})));
      out += "\n";
    }
  }
  return out;
}

std::string ratio_cell(const qualify::Summary& summary) {
  if (summary.pair.kl.mean == 0 && summary.engines.kl.mean == 0) return "=";
  const auto& [mean, low, high] = summary.ratio;
  return fmt::format("{:.2f} [{:.2f}–{:.2f}]", mean, low, high);
}

// "2.8 [2.4–3.2]e-3": all three in units of the mean's power of ten.
std::string nats_cell(const qualify::Summary& summary) {
  const auto& [mean, low, high] = summary.pair.kl;
  if (mean == 0) return "0";
  const double power = std::floor(std::log10(mean));
  const double unit = std::pow(10, power);
  return fmt::format("{:.1f} [{:.1f}–{:.1f}]e{:.0f}", mean / unit, low / unit, high / unit, power);
}

// Of those that the bar judges: whose figure is over it, or may be.
std::string over_the_bar(const Measurement& measured, const Summaries& summaries) {
  std::string out;
  for (const auto& [key, summary] : summaries) {
    if (!is_judged(key) || summary.ratio.high <= kv::kKlRatioMax) continue;
    out += fmt::format("| {} | {} | {} | {} |\n", key.first, key.second, ratio_cell(summary),
                       summary.is_within_bar     ? "within; more prompts would tell"
                       : measured.is_unlike(key) ? "over: its record covers nothing"
                                                 : "over");
  }
  return out;
}

void write_docs(const Measurement& measured, const Matrix& matrix, const Summaries& summaries,
                const std::filesystem::path& path) {
  std::ofstream file(path);
  file << fmt::format(
      "# All pairs of KV forms\n\nThe qualification of each pair of the embedded engines, written by `make "
      "matrix`; how it is measured stands in [qualification.md](../spec/qualification.md), what the figures "
      "mean in [crossing.md](crossing.md). {} prompts of {} to {} tokens, SmolLM2-135M-Instruct with Q4_1 "
      "weights. `make matrix` keeps what it measures by prompt (`build/matrix`), and intervals are drawn "
      "from "
      "that.\n\n## Ratios\n\n"
      "KL(decoder alone ‖ pair) in units of the engines' own distance, KL(decoder alone ‖ prefill engine "
      "alone): the mean over prompts, and its 95 % confidence interval (2,000 draws of prompts). The bar is "
      "{}; pairs with a four-bit form report their figure. `=`: both are exactly 0.\n",
      matrix.prompts.size(), qualify::prompt_lengths()[matrix.prompts.front()],
      qualify::prompt_lengths()[matrix.prompts.back()], kv::kKlRatioMax);
  file << tables(matrix, summaries, ratio_cell);
  file << "\n## At the bar\n\nPairs whose interval reaches over the bar. The mean decides: an unlike pair "
          "over "
          "the bar has a record that covers nothing, so that `up` refuses it under the policy "
          "`bounded`.\n\n| prefill | decode | ratio | verdict |\n|---|---|---|---|\n"
       << over_the_bar(measured, summaries);
  file << "\n## Distances\n\nThe pair's distance itself, in nats, with its interval: `2.8 [2.4–3.2]e-3` is "
          "0.0028 between 0.0024 and 0.0032.\n"
       << tables(matrix, summaries, nats_cell);
}

// Records are needed where the two ends execute the weights differently: one file a direction. Forms that
// differ by layout alone share a record, and the worst of them stands in it.
void write_records(const Measurement& measured, const Summaries& summaries,
                   const std::filesystem::path& folder) {
  struct Worst {
    std::string pair;
    kv::Qualification record;
    double ratio = 0;
  };
  std::map<std::string, std::map<std::vector<std::string>, Worst>> files;
  for (const auto& [key, summary] : summaries) {
    if (!measured.is_unlike(key)) continue;
    const engine::Engine& source = measured.engine(key.first);
    const engine::Engine& target = measured.engine(key.second);
    const kv::Qualification record =
        qualify::record_of(source.descriptor(), target.descriptor(), summary.pair.kl.mean,
                           summary.engines.kl.mean, summary.prompts);
    auto& records = files[fmt::format("{}_{}.yaml", source.info().name, target.info().name)];
    Worst& worst = records[{record.prefill_recipe, record.decode_recipe, record.lineage, record.wire_form,
                            record.decode_form}];
    if (!worst.pair.empty() && summary.ratio.mean <= worst.ratio) continue;
    worst = {fmt::format("{} -> {}", key.first, key.second), record, summary.ratio.mean};
  }
  for (const auto& [name, records] : files) {
    std::ofstream file(folder / name);
    file << "# SPDX-License-Identifier: Apache-2.0\n# Written by `make matrix`; see spec/qualification.md.\n";
    for (const auto& [covered, worst] : records)
      file << fmt::format("# {}\n{}", worst.pair, qualify::record_text(worst.record));
  }
}

// Named runs only. ISTHMUS_MATRIX_FOLDER keeps what is measured; each process takes one prompt of so many.
TEST(Matrix, DISABLED_MeasuresItsPrompts) {
  const char* folder = std::getenv("ISTHMUS_MATRIX_FOLDER");
  const char* share = std::getenv("ISTHMUS_MATRIX_SHARE");  // "0/2": the first of two.
  ASSERT_TRUE(folder != nullptr && share != nullptr);
  std::size_t first = 0, of = 1;
  ASSERT_EQ(std::sscanf(share, "%zu/%zu", &first, &of), 2);
  Matrix matrix = whole_matrix();
  std::vector<std::size_t> own;
  for (std::size_t i = first; i < matrix.prompts.size(); i += of) own.push_back(matrix.prompts[i]);
  matrix.prompts = own;
  ASSERT_TRUE(Measurement(matrix).run_into(folder));
}

TEST(Matrix, EveryPairAnswersLikeItsDecoderAlone) {
  const char* docs = std::getenv("ISTHMUS_WRITE_MATRIX");
  const char* folder = std::getenv("ISTHMUS_MATRIX_FOLDER");
  if (docs == nullptr || folder == nullptr) GTEST_SKIP() << "an hour or two: make matrix";
  const Matrix matrix = whole_matrix();
  Measurement measured(matrix);
  ASSERT_TRUE(measured.read(folder));
  const Summaries summaries = measured.summaries();
  expect_bar(measured, summaries, false);
  write_docs(measured, matrix, summaries, std::filesystem::path(docs) / "docs" / "crossing-matrix.md");
  write_records(measured, summaries, std::filesystem::path(docs) / "deploy" / "demo" / "qualification");
}

// Each engine in each role, each kind of form on either side at least once, short prompts.
TEST(Matrix, ACoverOfAllFormsAnswersLikeTheDecodersAlone) {
  const std::vector<std::size_t> prompts{6, 14};  // 33 and 129 tokens.
  Measurement backward({{{"openvino", "f32"}, {"openvino", "u8_channel"}, {"openvino", "u4"}},
                        {{"llamacpp", "f16"}, {"llamacpp", "q8_0_v_q4_0"}},
                        prompts});
  ASSERT_TRUE(backward.run());
  expect_bar(backward, backward.summaries(), true);
  Measurement forward({{{"llamacpp", "f16_v_transposed"}, {"llamacpp", "q8_0_v_q4_0"}, {"llamacpp", "q8_0"}},
                       {{"openvino", "u4"}, {"openvino", "u8_channel"}, {"llamacpp", "q8_0_unrotated"}},
                       prompts});
  ASSERT_TRUE(forward.run());
  expect_bar(forward, forward.summaries(), true);
}

}  // namespace
}  // namespace isthmus::crossing
