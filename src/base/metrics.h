// SPDX-License-Identifier: Apache-2.0
// Counters, gauges and histograms in Prometheus' model; the one home of prometheus-cpp.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace isthmus {

using MetricLabels = std::map<std::string, std::string>;

// Handles are cheap to copy, valid as long as their registry, and may be used from any thread.
class Counter {
 public:
  void add(double amount = 1.0) const;
  double value() const;

 private:
  friend class MetricsRegistry;
  void* counter_ = nullptr;
};

class Gauge {
 public:
  void set(double value) const;
  void add(double amount) const;
  double value() const;

 private:
  friend class MetricsRegistry;
  void* gauge_ = nullptr;
};

class Histogram {
 public:
  void observe(double value) const;

 private:
  friend class MetricsRegistry;
  void* histogram_ = nullptr;
};

// One per process, made in main() and handed down. Names carry the unit (…_seconds, …_bytes, …_total);
// label values come from closed sets, never from requests.
class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The same (name, labels) gives the same metric.
  Counter counter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Gauge gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Histogram histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                      const MetricLabels& labels = {});

  // Prometheus' text exposition format.
  std::string render() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace isthmus
