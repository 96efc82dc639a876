// SPDX-License-Identifier: Apache-2.0
// The folder of one `isthmus up`: fleet key, fleet file, qualification records.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "fleet/fleet.h"

namespace isthmus::cli {

// Made in /tmp, readable by its owner only, removed with this object. A lock in it says that it is in use:
// the next one made removes those of this user whose process was killed.
class UpFolder {
 public:
  // A new key and the built-in records are in it. Errors: unavailable with the system's reason.
  static Result<UpFolder> make(const std::string& parent = "/tmp");
  ~UpFolder();
  UpFolder(UpFolder&& other) noexcept;
  UpFolder& operator=(UpFolder&&) = delete;

  const std::string& path() const { return path_; }
  std::string fleet_file() const { return path_ + "/fleet.yaml"; }
  // Replaces the fleet file in one step: a reader sees the old or the new one.
  Status write_fleet(const fleet::Model& model, const std::vector<fleet::Worker>& workers) const;

 private:
  explicit UpFolder(std::string path) : path_(std::move(path)) {}
  Status lock();

  std::string path_;                       // "" once moved from.
  int lock_ = -1;                          // Held until the process ends, however it ends.
  std::vector<std::string> record_files_;  // Relative to the folder.
};

}  // namespace isthmus::cli
