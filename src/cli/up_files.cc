// SPDX-License-Identifier: Apache-2.0
// Files of `isthmus up`, each made with mode 0600.
#include "cli/up_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/mac.h"
#include "base/rng.h"
#include "cli/qualification_data.h"

namespace isthmus::cli {
namespace {

constexpr std::string_view kNameStart = "isthmus-";
constexpr const char* kLockName = "/lock";

Error file_error(const std::string& path, int number) {
  return Error{Code::kUnavailable, fmt::format("{} can't be written: {}", path, std::strerror(number))};
}

Status write_file(const std::string& path, std::string_view text) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) return file_error(path, errno);
  int failed = 0;
  while (!text.empty() && failed == 0) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      failed = errno;
    }
  }
  if (close(file) != 0 && failed == 0) failed = errno;
  return failed == 0 ? ok_status() : Status(file_error(path, failed));
}

std::string_view policy_name(kv::Exactness exactness) {
  switch (exactness) {
    case kv::Exactness::kLossless:
      return "lossless";
    case kv::Exactness::kBounded:
      return "bounded";
    case kv::Exactness::kUnqualified:
      return "unqualified";
  }
  return "lossless";
}

std::string hex_of(const Key& key) {
  std::string text;
  for (const std::byte byte : key) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

// Is this a folder of ours, of a process that is gone?
bool is_stale(const std::string& path) {
  struct stat status{};
  const bool is_ours = lstat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode) &&
                       status.st_uid == geteuid() && (status.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  if (!is_ours) return false;
  const int lock = open((path + kLockName).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (lock < 0) return false;
  const bool is_free = flock(lock, LOCK_EX | LOCK_NB) == 0;
  close(lock);
  return is_free;
}

void remove_stale(const std::string& parent) {
  std::error_code failed;
  std::vector<std::string> stale;
  for (std::filesystem::directory_iterator at(parent, failed), end; !failed && at != end;
       at.increment(failed)) {
    if (at->path().filename().string().starts_with(kNameStart) && is_stale(at->path().string()))
      stale.push_back(at->path().string());
  }
  for (const std::string& path : stale) std::filesystem::remove_all(path, failed);
}

}  // namespace

// It appears under its name locked: nobody finds it without its owner's lock.
Status UpFolder::lock() {
  const std::string path = path_ + kLockName, made = path + ".new";
  lock_ = open(made.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (lock_ < 0 || flock(lock_, LOCK_EX | LOCK_NB) != 0) return file_error(made, errno);
  if (std::rename(made.c_str(), path.c_str()) != 0) return file_error(path, errno);
  return ok_status();
}

Result<UpFolder> UpFolder::make(const std::string& parent) {
  remove_stale(parent);
  std::string path = parent + "/" + std::string(kNameStart) + "XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return file_error(path, errno);
  UpFolder folder(path);
  ISTHMUS_TRY(folder.lock());
  Key key{};
  random_bytes(key);
  ISTHMUS_TRY(write_file(path + "/fleet.key", hex_of(key) + "\n"));
  for (const auto& [name, text] : qualification_files()) {
    folder.record_files_.emplace_back(name);
    ISTHMUS_TRY(write_file(fmt::format("{}/{}", path, name), text));
  }
  return folder;
}

UpFolder::UpFolder(UpFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      lock_(std::exchange(other.lock_, -1)),
      record_files_(std::move(other.record_files_)) {}

UpFolder::~UpFolder() {
  std::error_code ignored;  // Nothing to be done about a folder in /tmp that somebody else changed.
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  if (lock_ >= 0) close(lock_);
}

Status UpFolder::write_fleet(const fleet::Model& model, const std::vector<fleet::Worker>& workers) const {
  std::string text = fmt::format(
      "# SPDX-License-Identifier: Apache-2.0\nfleet: up\nkey: file:fleet.key\nmodels:\n"
      "  {}: {{policy: {}, on_failure: {}, canary: {}}}\nworkers:\n",
      model.name, policy_name(model.exactness), name(model.on_failure), name(model.canary));
  for (const fleet::Worker& worker : workers) {
    text += fmt::format("  - {{name: {}, role: {}, model: {}, url: \"{}\", engine: {}}}\n", worker.name,
                        name(worker.role), worker.model, worker.url(), worker.engine);
  }
  text += "qualifications:\n";
  for (const std::string& file : record_files_) text += fmt::format("  - {}\n", file);
  const std::string next = fleet_file() + ".next";
  ISTHMUS_TRY(write_file(next, text));
  if (std::rename(next.c_str(), fleet_file().c_str()) != 0) return file_error(fleet_file(), errno);
  return ok_status();
}

}  // namespace isthmus::cli
