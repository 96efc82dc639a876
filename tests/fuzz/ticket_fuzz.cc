// SPDX-License-Identifier: Apache-2.0
// Tickets as routers relay them: read, judged, and written again.
#include "fuzz/input.h"
#include "wire/ticket.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace isthmus;
  const auto parsed = wire::parse_ticket(fuzz::text_of_input(data, size));
  if (!parsed.ok()) return 0;
  Key key{};
  key.fill(std::byte{7});
  const wire::TicketFence fence{parsed->ticket.producer, parsed->ticket.incarnation, 0};
  const wire::TicketFault fault = wire::verify(*parsed, key, fence);
  ISTHMUS_CHECK(!wire::name(fault).empty());
  const auto minted = wire::mint(parsed->ticket, key);
  ISTHMUS_CHECK(minted.ok());
  ISTHMUS_CHECK(minted->size() <= wire::kTicketTextMax);
  const auto again = wire::parse_ticket(*minted);
  ISTHMUS_CHECK(again.ok());
  ISTHMUS_CHECK(again->ticket == parsed->ticket);
  // What was signed is what is judged: the same fields give the same signed bytes.
  ISTHMUS_CHECK(again->signed_bytes == parsed->signed_bytes);
  return 0;
}
