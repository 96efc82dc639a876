// SPDX-License-Identifier: Apache-2.0
// `isthmus up` with real child processes that play workers.
#include "cli/up.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cli/up_files.h"
#include "http/client.h"
#include "net/run_until.h"

namespace isthmus::cli {
namespace {

using ::testing::HasSubstr;

// What follows `option` on a worker's command line.
std::string argument_of(pid_t worker, std::string_view option) {
  std::ifstream file("/proc/" + std::to_string(worker) + "/cmdline");
  std::string argument;
  while (std::getline(file, argument, '\0')) {
    if (argument != option) continue;
    std::getline(file, argument, '\0');
    return argument;
  }
  return {};
}

// The folder of a running `isthmus up`.
std::filesystem::path folder_of(pid_t worker) {
  return std::filesystem::path(argument_of(worker, "--fleet")).parent_path();
}

class UpTest : public ::testing::Test {
 protected:
  UpTest() : model_(std::filesystem::path(::testing::TempDir()) / "Fake-Model.Q4.gguf") {
    setup_.program = FAKE_WORKER;
    setup_.command.model_path = model_.string();
    setup_.command.listen = {"127.0.0.1", 0};
  }
  ~UpTest() override { std::filesystem::remove(model_); }

  void start(const std::string& behaviour) {
    std::ofstream(model_) << behaviour;
    UpEvents events;
    events.on_ready = [this](const net::Endpoint& router) { router_ = router; };
    events.on_note = [this](const std::string& text) { notes_ += text + "\n"; };
    events.on_end = [this](int code) { exit_code_ = code; };
    auto up = Up::start(loop_, setup_, std::move(events));
    ASSERT_TRUE(up.ok()) << up.error().text();
    up_ = *std::move(up);
  }
  bool wait(const std::function<bool()>& done) {
    return net::run_until(loop_, done, std::chrono::seconds(30));
  }

  // Process ids from "… is loading, process N".
  std::vector<pid_t> processes() const {
    std::vector<pid_t> found;
    const std::string word = "process ";
    for (auto at = notes_.find(word); at != std::string::npos; at = notes_.find(word, at + 1)) {
      found.push_back(std::stoi(notes_.substr(at + word.size())));
    }
    return found;
  }

  http::Response ask() {
    std::optional<Result<http::Response>> answer;
    http::Request request{
        "POST", "/v1/completions", "", {{"Content-Type", "application/json"}}, R"({"prompt":"hi"})"};
    const auto call =
        http::fetch(*client_, *router_, request, [&](Result<http::Response> got) { answer = got; });
    EXPECT_TRUE(wait([&] { return answer.has_value(); }));
    return answer.has_value() && answer->ok() ? **answer : http::Response{0, {}, ""};
  }

  std::filesystem::path model_;
  net::Loop loop_;
  UpSetup setup_;
  std::unique_ptr<http::Client> client_ = http::make_client(loop_, http::ClientLimits{});
  std::optional<net::Endpoint> router_;
  std::string notes_;
  std::optional<int> exit_code_;
  std::unique_ptr<Up> up_;
};

TEST_F(UpTest, ServesThroughBothWorkersAndLeavesNothingBehind) {
  start("serve");
  ASSERT_TRUE(wait([&] { return router_.has_value(); })) << notes_;
  const http::Response answer = ask();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(http::header(answer.headers, "X-Isthmus-Prefill"), "p1");
  EXPECT_EQ(http::header(answer.headers, "X-Isthmus-Decode"), "d1");
  ASSERT_EQ(processes().size(), 2u);
  const std::filesystem::path folder = folder_of(processes()[0]);
  EXPECT_TRUE(std::filesystem::exists(folder / "fleet.key")) << folder;
  up_->stop();
  ASSERT_TRUE(wait([&] { return exit_code_.has_value(); }));
  EXPECT_EQ(*exit_code_, kExitOk);
  for (const pid_t pid : processes()) EXPECT_EQ(kill(pid, 0), -1);
  up_.reset();
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST_F(UpTest, GivesEachWorkerItsOwnActivations) {
  setup_.command.decode_activations = "int8";
  start("serve");
  ASSERT_TRUE(wait([&] { return router_.has_value(); })) << notes_;
  EXPECT_EQ(argument_of(processes().at(0), "--activations"), "f32");
  EXPECT_EQ(argument_of(processes().at(1), "--activations"), "int8");
}

TEST_F(UpTest, GoesOnWithoutTheWorkerThatDies) {
  start("serve");
  ASSERT_TRUE(wait([&] { return router_.has_value(); })) << notes_;
  kill(processes().at(0), SIGKILL);
  ASSERT_TRUE(wait([&] { return notes_.find("p1 ended with signal 9") != std::string::npos; }));
  EXPECT_EQ(ask().status, 200);
  kill(processes().at(1), SIGKILL);
  ASSERT_TRUE(wait([&] { return exit_code_.has_value(); }));
  EXPECT_EQ(*exit_code_, kExitCannotStart);
  EXPECT_THAT(notes_, HasSubstr("no worker is left"));
}

TEST_F(UpTest, EndsWithTheProbesExitCodeWhenAProbeFails) {
  start("prefill=exit-4 decode=serve");
  ASSERT_TRUE(wait([&] { return exit_code_.has_value(); }));
  EXPECT_EQ(*exit_code_, kExitProbeFailed);
  EXPECT_FALSE(router_.has_value());
  for (const pid_t pid : processes()) EXPECT_EQ(kill(pid, 0), -1);
}

TEST_F(UpTest, EndsWhenAWorkerCannotStart) {
  start("prefill=serve decode=exit-3");
  ASSERT_TRUE(wait([&] { return exit_code_.has_value(); }));
  EXPECT_EQ(*exit_code_, kExitCannotStart);
  EXPECT_THAT(notes_, HasSubstr("decode worker d1 ended with exit code 3"));
}

TEST_F(UpTest, EndsWhenAWorkerNeverGetsReady) {
  setup_.ready_timeout = std::chrono::milliseconds(300);
  start("prefill=serve decode=mute");
  ASSERT_TRUE(wait([&] { return exit_code_.has_value(); }));
  EXPECT_EQ(*exit_code_, kExitCannotStart);
  EXPECT_THAT(notes_, HasSubstr("aren't ready in time"));
}

TEST_F(UpTest, KillsAWorkerThatDoesNotStop) {
  setup_.stop_timeout = std::chrono::milliseconds(50);
  start("prefill=deaf decode=serve");
  ASSERT_TRUE(wait([&] { return router_.has_value(); })) << notes_;
  up_->stop();
  ASSERT_TRUE(wait([&] { return exit_code_.has_value(); }));
  EXPECT_THAT(notes_, HasSubstr("worker p1 doesn't stop and is killed"));
  EXPECT_EQ(*exit_code_, kExitOk);
}

TEST_F(UpTest, NamesAModelFileThatIsMissing) {
  const auto up = Up::start(loop_, setup_, {});
  ASSERT_FALSE(up.ok());
  EXPECT_THAT(up.error().text(), HasSubstr("not_found: no model file '"));
}

TEST_F(UpTest, RefusesAPortThatIsTakenBeforeAnythingIsLoaded) {
  std::ofstream(model_) << "serve";
  const auto taken = net::listen(loop_, {"127.0.0.1", 0}, [](const auto&) {});
  ASSERT_TRUE(taken.ok());
  setup_.command.listen = (*taken)->endpoint();
  const auto up = Up::start(loop_, setup_, {});
  ASSERT_FALSE(up.ok());
  EXPECT_EQ(up.code(), Code::kUnavailable);
}

TEST(UpFolder, IsReadableByItsOwnerOnlyAndHoldsALoadableFleet) {
  std::string path;
  {
    const auto folder = UpFolder::make();
    ASSERT_TRUE(folder.ok()) << folder.error().text();
    path = folder->path();
    fleet::Model model;
    model.name = "m";
    model.exactness = kv::Exactness::kBounded;
    ASSERT_TRUE(folder->write_fleet(model, {}).ok());
    fleet::Worker worker{"p1", fleet::Role::kPrefill, "m", {"127.0.0.1", 7}, "", "llamacpp"};
    ASSERT_TRUE(folder->write_fleet(model, {worker}).ok());
    const auto fleet = fleet::load_fleet(folder->fleet_file());
    ASSERT_TRUE(fleet.ok()) << fleet.error().text();
    EXPECT_EQ(fleet->workers.size(), 1u);
    EXPECT_EQ(fleet->models[0].exactness, kv::Exactness::kBounded);
    using std::filesystem::perms;
    EXPECT_EQ(std::filesystem::status(fleet->key_file).permissions(), perms::owner_read | perms::owner_write);
    EXPECT_EQ(std::filesystem::status(path).permissions(), perms::owner_all);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(UpFolder, LeftBehindByAKilledProcessIsRemovedByTheNextAndNothingElseIs) {
  std::string parent = ::testing::TempDir() + "up-XXXXXX";
  ASSERT_NE(mkdtemp(parent.data()), nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const auto killed = UpFolder::make(parent);
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  const auto count = [&] {
    return std::distance(std::filesystem::directory_iterator(parent), std::filesystem::directory_iterator());
  };
  ASSERT_EQ(count(), 1) << "what the killed process left";
  std::filesystem::create_directory(parent + "/isthmus-other");  // Without a lock: not known to be ours.
  std::filesystem::permissions(parent + "/isthmus-other", std::filesystem::perms::owner_all);
  std::filesystem::create_directory_symlink(parent + "/isthmus-other", parent + "/isthmus-link00");
  {
    const auto first = UpFolder::make(parent);
    ASSERT_TRUE(first.ok()) << first.error().text();
    EXPECT_EQ(count(), 3);
    const auto second = UpFolder::make(parent);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(count(), 4) << "a folder in use stays";
    EXPECT_TRUE(std::filesystem::exists(first->path() + "/fleet.key"));
  }
  EXPECT_EQ(count(), 2);
  std::filesystem::remove_all(parent);
}

TEST(ServedModel, IsMadeOfTheFilesName) {
  EXPECT_EQ(served_model_of("/x/SmolLM2-135M-Instruct.Q4_1.gguf"), "smollm2-135m-instruct");
  EXPECT_EQ(served_model_of("my model.gguf"), "my-model");
  EXPECT_EQ(served_model_of(".gguf"), "model");
}

}  // namespace
}  // namespace isthmus::cli
