// SPDX-License-Identifier: Apache-2.0
// The bytes of .kvs files on disk.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "kvs/reader.h"
#include "kvs/writer.h"

namespace isthmus::kvs {

struct InputFile {
  ReadExactly read;
  std::uint64_t size = 0;
};
// not_found with the system's reason. A read beyond the end is malformed.
Result<InputFile> open_input(const std::string& path);

// Written beside its final name and put there by close(), so that half a file is never taken for one; removed
// if that doesn't happen.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::string& path);
  ~OutputFile();
  OutputFile(OutputFile&&) noexcept;
  OutputFile& operator=(OutputFile&&) noexcept;

  WriteAll writer();  // The file must outlive it.
  Status close();

 private:
  struct State;
  explicit OutputFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace isthmus::kvs
