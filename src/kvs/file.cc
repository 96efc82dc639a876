// SPDX-License-Identifier: Apache-2.0
// See file.h.
#include "kvs/file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "base/bytes.h"

namespace isthmus::kvs {

Result<InputFile> open_input(const std::string& path) {
  const auto file = std::make_shared<std::ifstream>(path, std::ios::binary);
  std::error_code failure;
  const std::uint64_t size = std::filesystem::file_size(path, failure);
  if (failure || !*file) {
    const std::string why = failure ? failure.message() : std::string(std::strerror(errno));
    return Error{Code::kNotFound, fmt::format("{}: {}", path, why)};
  }
  return InputFile{[file](std::span<std::byte> bytes) -> Status {
                     file->read(as_chars(bytes.data()), static_cast<std::streamsize>(bytes.size()));
                     if (file->gcount() == static_cast<std::streamsize>(bytes.size())) return ok_status();
                     return Error{Code::kMalformed, "kvs file: it ends too early"};
                   },
                   size};
}

struct OutputFile::State {
  std::string path, part;
  std::ofstream file;
};

OutputFile::OutputFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
OutputFile::OutputFile(OutputFile&&) noexcept = default;
OutputFile& OutputFile::operator=(OutputFile&&) noexcept = default;
OutputFile::~OutputFile() {
  if (state_ == nullptr || state_->part.empty()) return;
  std::error_code ignored;
  std::filesystem::remove(state_->part, ignored);
}

Result<OutputFile> OutputFile::create(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->file.open(path + ".part", std::ios::binary | std::ios::trunc);
  if (!state->file) {
    return Error{Code::kInvalidArgument,
                 fmt::format("{}.part: can't be written: {}", path, std::strerror(errno))};
  }
  state->part = path + ".part";
  return OutputFile(std::move(state));
}

WriteAll OutputFile::writer() {
  return [state = state_.get()](std::span<const std::byte> bytes) -> Status {
    state->file.write(as_chars(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    if (state->file) return ok_status();
    return Error{Code::kExhausted,
                 fmt::format("{}: can't be written: {}", state->part, std::strerror(errno))};
  };
}

Status OutputFile::close() {
  state_->file.close();
  std::error_code failure;
  if (state_->file) std::filesystem::rename(state_->part, state_->path, failure);
  if (!state_->file || failure)
    return Error{Code::kExhausted, fmt::format("{}: can't be written", state_->path)};
  state_->part.clear();
  return ok_status();
}

}  // namespace isthmus::kvs
