// SPDX-License-Identifier: Apache-2.0
// Tests of the metrics registry.
#include "base/metrics.h"

#include <gtest/gtest.h>

namespace isthmus {
namespace {

TEST(Metrics, OneNameAndLabelsIsOneMetric) {
  MetricsRegistry registry;
  registry.counter("a_total", "help", {{"why", "x"}}).add(2);
  registry.counter("a_total", "help", {{"why", "x"}}).add(3);
  registry.counter("a_total", "help", {{"why", "y"}}).add(1);
  EXPECT_EQ(registry.counter("a_total", "help", {{"why", "x"}}).value(), 5);
  const std::string text = registry.render();
  EXPECT_NE(text.find("a_total{why=\"x\"} 5"), std::string::npos) << text;
  EXPECT_NE(text.find("a_total{why=\"y\"} 1"), std::string::npos) << text;
}

TEST(Metrics, GaugesAndHistogramsRender) {
  MetricsRegistry registry;
  registry.gauge("live", "help").set(4);
  registry.histogram("t_seconds", "help", {0.1, 1.0}).observe(0.5);
  const std::string text = registry.render();
  EXPECT_NE(text.find("live 4"), std::string::npos) << text;
  EXPECT_NE(text.find("t_seconds_bucket{le=\"1\"} 1"), std::string::npos) << text;
}

}  // namespace
}  // namespace isthmus
