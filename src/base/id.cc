// SPDX-License-Identifier: Apache-2.0
// Text form of identities.
#include "base/id.h"

#include "base/digest.h"

namespace isthmus {

std::string Id128::hex() const {
  return Digest128{high, low}.hex();
}

std::optional<Id128> Id128::from_hex(std::string_view text) {
  const auto value = Digest128::from_hex(text);
  if (!value) return std::nullopt;
  return Id128{value->high, value->low};
}

}  // namespace isthmus
