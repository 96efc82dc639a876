// SPDX-License-Identifier: Apache-2.0
// Names and labels.
#include "handoff/agent/meters.h"

#include <chrono>

namespace isthmus::handoff {
namespace {

// What `make` gives, made once for a key.
template <typename Key, typename Handle, typename Make>
const Handle& kept(std::map<Key, Handle>& handles, const Key& key, Make make) {
  const auto at = handles.find(key);
  return at != handles.end() ? at->second : handles.emplace(key, make()).first->second;
}

}  // namespace

Counter Meters::busy(const std::string& stage) {
  return registry_.counter("isthmus_handoff_busy_seconds_total",
                           "Processor time that the mover spent in each stage", {{"stage", stage}});
}

Meters::Moved Meters::moved(const std::string& side, const std::string& wire) {
  return kept(moved_, {side, wire}, [&] {
    const MetricLabels labels{{"side", side}, {"wire", wire}};
    return Moved{
        registry_.counter("isthmus_handoff_bytes_total", "Chunk bodies moved, by side and wire form", labels),
        registry_.counter("isthmus_handoff_stored_bytes_total",
                          "Bytes of chunk bodies as they crossed: fewer under a codec", labels)};
  });
}

void Meters::ended(const std::string& side, TerminalKind kind) {
  kept(ended_, {side, std::string(name(kind))}, [&] {
    return registry_.counter("isthmus_handoffs_total", "Handoffs by side and how they ended",
                             {{"side", side}, {"outcome", std::string(name(kind))}});
  }).add();
}

void Meters::stage(const std::string& stage, Duration took) {
  kept(stages_, stage, [&] {
    return registry_.histogram(
        "isthmus_handoff_seconds", "Time of each stage of a handoff at its consumer",
        {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30}, {{"stage", stage}});
  }).observe(std::chrono::duration<double>(took).count());
}

void Meters::transport_chosen(const std::string& transport) {
  kept(chosen_, transport, [&] {
    return registry_.counter("isthmus_transport_chosen_total", "Fetches by the transport of their session",
                             {{"transport", transport}});
  }).add();
}

void Meters::transport_refused(std::string_view transport, Code why) {
  registry_
      .counter("isthmus_transport_refused_total",
               "Ways to a producer that led nowhere, by transport and reason",
               {{"transport", std::string(transport)}, {"reason", std::string(name(why))}})
      .add();
}

void Meters::peer_refused(Code why) {
  registry_
      .counter("isthmus_handoff_peer_refused_total",
               "Sessions or channels refused or broken off, by error code",
               {{"code", std::string(name(why))}})
      .add();
}

void Meters::ticket_refused(std::string_view why) {
  registry_
      .counter("isthmus_ticket_refused_total", "Tickets refused by the fence", {{"why", std::string(why)}})
      .add();
}

void Meters::quarantined() {
  registry_.counter("isthmus_handoff_quarantined_total", "Destinations lost to a placement that never ended")
      .add();
}

void Meters::consumer_reached() {
  registry_
      .counter("isthmus_handoff_consumers_reached_total",
               "Connections to consumers that this producer has opened, for where they can't open them")
      .add();
}

}  // namespace isthmus::handoff
