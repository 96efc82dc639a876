// SPDX-License-Identifier: Apache-2.0
// Fleet files and qualification records.
#include "fleet/fleet.h"
#include "fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  const std::string_view text = fuzz::text_of_input(data, size);
  const auto fleet = fleet::parse_fleet(text, "/nonexistent", "fuzz.yaml");
  if (fleet.ok()) {
    for (const fleet::Worker& worker : fleet->workers) {
      ISTHMUS_CHECK(fleet->find_model(worker.model) != nullptr);
      ISTHMUS_CHECK(fleet->find_worker(worker.name) == &worker);
    }
    ISTHMUS_CHECK(fleet->workers.size() <= fleet::kWorkersMax && fleet->models.size() <= fleet::kModelsMax);
  } else {
    ISTHMUS_CHECK(!fleet.error().detail.empty());
  }
  const auto records = fleet::parse_qualifications(text, "fuzz.yaml");
  if (records.ok()) ISTHMUS_CHECK(records->size() <= fleet::kQualificationsMax);
  return 0;
}
