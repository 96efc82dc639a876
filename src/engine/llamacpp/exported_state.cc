// SPDX-License-Identifier: Apache-2.0
// Binding of exported rows, with a reordering copy only where cells are out of order.
#include "engine/llamacpp/exported_state.h"

#include <cstring>
#include <string>
#include <utility>

namespace isthmus::engine::llamacpp {
namespace {

class ExportedState : public ExportedKv {
 public:
  ExportedState(std::unique_ptr<std::byte[]> buffer, std::size_t size)
      : buffer_(std::move(buffer)), size_(size) {}

  Status bind(const StateShape& shape) {
    ISTHMUS_TRY(SequenceState state, parse_sequence_state({buffer_.get(), size_}, shape));
    bool ascending = true;
    for (std::size_t i = 1; i < state.positions.size(); ++i)
      ascending &= state.positions[i - 1] < state.positions[i];
    if (!ascending) put_in_order(state, shape);
    binding_.first_row = 0;
    binding_.first_position = static_cast<std::uint64_t>(shape.position_begin);
    binding_.valid = {static_cast<std::uint64_t>(shape.position_begin),
                      static_cast<std::uint64_t>(shape.position_end)};
    for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
      add("K", layer, state.k[layer], state.positions.size());
      add("V", layer, state.v[layer], state.positions.size());
    }
    return ok_status();
  }

  const kv::Binding& binding() const override { return binding_; }
  std::uint64_t bytes() const override { return size_; }

 private:
  void add(std::string region, std::uint32_t layer, std::span<const std::byte> rows, std::uint64_t count) {
    // The binding's pointer isn't const because targets share its type; the bytes are this object's own.
    std::byte* base = buffer_.get() + (rows.data() - buffer_.get());
    binding_.memory.push_back({.region = std::move(region),
                               .layer = layer,
                               .base = base,
                               .bytes = rows.size(),
                               .open_extent = count});
  }

  // Rows of every plane into a second buffer, by position; the planes then point there.
  void put_in_order(SequenceState& state, const StateShape& shape) {
    auto ordered = std::make_unique_for_overwrite<std::byte[]>(size_);
    std::size_t used = 0;
    const auto reorder = [&](std::span<const std::byte>& plane, std::uint64_t row_bytes) {
      std::byte* to = ordered.get() + used;
      for (std::size_t row = 0; row < state.positions.size(); ++row) {
        const auto place = static_cast<std::uint64_t>(state.positions[row] - shape.position_begin);
        std::memcpy(to + place * row_bytes, plane.data() + row * row_bytes, row_bytes);
      }
      plane = {to, plane.size()};
      used += plane.size();  // The planes of a state are smaller than the whole of it.
    };
    for (auto& plane : state.k) reorder(plane, shape.k_row_bytes);
    for (auto& plane : state.v) reorder(plane, shape.v_row_bytes);
    buffer_ = std::move(ordered);
    size_ = used;
  }

  std::unique_ptr<std::byte[]> buffer_;
  std::size_t size_;
  kv::Binding binding_;
};

}  // namespace

Result<std::unique_ptr<ExportedKv>> export_state(std::unique_ptr<std::byte[]> buffer, std::size_t size,
                                                 const StateShape& shape) {
  auto exported = std::make_unique<ExportedState>(std::move(buffer), size);
  ISTHMUS_TRY(exported->bind(shape));
  return std::unique_ptr<ExportedKv>(std::move(exported));
}

}  // namespace isthmus::engine::llamacpp
