// SPDX-License-Identifier: Apache-2.0
// Test only: GET /state as a worker gives it.
#pragma once

#include <string>

namespace isthmus::watch {

// A consumer's, with one handoff in flight; `name` and `side` as given.
inline std::string sample_state(const std::string& name, const std::string& side) {
  const std::string other = side == "producer" ? "d1" : "p1";
  return R"({"worker":{"name":")" + name + R"(","model":"m","role":"decode","endpoints":["tcp://127.0.0.1:7"],
"incarnation":"c0ffee","draining":false},
"engine":{"name":"openvino","version":"1","storage":"openvino:u8","context_tokens_max":8192,"block_tokens":32,
"kv_bytes_per_token":1000,"sequences_open":2,"sequences_max":8,"blocks_used":20,"blocks_total":100,
"kv_bytes_used":640000,"kv_bytes_total":3200000,"jobs_running":1,"jobs_waiting":0,"jobs_preempted":0,
"prompt_tokens_computed":100,"prompt_tokens_adopted":600,"tokens_generated":40,
"sequences":[{"job":7,"kind":"resume","prompt_tokens":600,
"computed_tokens":600,"generated_tokens":12,"preempted":false}]},
"agent":{"sessions":1,"quarantined":0,"handoffs":[{"id":"c0ffee01.17","side":")" +
         side + R"(","peer":")" + other + R"(","state":"receiving","transport":"tcp","wire":"k f16",
"tokens":[0,600],"attempt":1,"generation":1,"age_seconds":0.4,"bytes_moved":1048576,"bytes_total":4194304,
"lease_left_seconds":9.1}],"handoffs_left_off":0,"reservations":[],"reservations_left_off":0},
"ledger":{"capacity":{"bytes":3200000,"blocks":100},"free":{"bytes":1600000,"blocks":50},
"staging_capacity_bytes":67108864,"staging_free_bytes":58720256,"held":{"active":{"bytes":600000,"blocks":18},
"incoming":{"bytes":1000000,"blocks":32},"staging":{"bytes":8388608,"blocks":0}},
"granted":9,"released":6,"live":3},
"descriptor":{"digest":"1f2e","lines":[["groups.0.layout","region K\nregion V"],
["weights_recipe","gguf"]]}})";
}

}  // namespace isthmus::watch
