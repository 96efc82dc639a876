// SPDX-License-Identifier: Apache-2.0
// The one translation unit that includes prometheus-cpp.
#include "base/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <mutex>
#include <utility>

namespace isthmus {

struct MetricsRegistry::State {
  prometheus::Registry registry;
  // prometheus-cpp refuses a second family of one name, so families are kept by name.
  std::mutex mutex;
  std::map<std::string, prometheus::Family<prometheus::Counter>*> counters;
  std::map<std::string, prometheus::Family<prometheus::Gauge>*> gauges;
  std::map<std::string, prometheus::Family<prometheus::Histogram>*> histograms;
};

namespace {

template <typename Family, typename Build>
Family& family_of(std::map<std::string, Family*>& families, const std::string& name, Build build) {
  auto [it, inserted] = families.try_emplace(name, nullptr);
  if (inserted) it->second = &build();
  return *it->second;
}

}  // namespace

MetricsRegistry::MetricsRegistry() : state_(std::make_unique<State>()) {}
MetricsRegistry::~MetricsRegistry() = default;

Counter MetricsRegistry::counter(const std::string& name, const std::string& help,
                                 const MetricLabels& labels) {
  const std::lock_guard lock(state_->mutex);
  auto& family = family_of(state_->counters, name, [&]() -> auto& {
    return prometheus::BuildCounter().Name(name).Help(help).Register(state_->registry);
  });
  Counter handle;
  handle.counter_ = &family.Add(labels);
  return handle;
}

Gauge MetricsRegistry::gauge(const std::string& name, const std::string& help, const MetricLabels& labels) {
  const std::lock_guard lock(state_->mutex);
  auto& family = family_of(state_->gauges, name, [&]() -> auto& {
    return prometheus::BuildGauge().Name(name).Help(help).Register(state_->registry);
  });
  Gauge handle;
  handle.gauge_ = &family.Add(labels);
  return handle;
}

Histogram MetricsRegistry::histogram(const std::string& name, const std::string& help,
                                     const std::vector<double>& bounds, const MetricLabels& labels) {
  const std::lock_guard lock(state_->mutex);
  auto& family = family_of(state_->histograms, name, [&]() -> auto& {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(state_->registry);
  });
  Histogram handle;
  handle.histogram_ = &family.Add(labels, prometheus::Histogram::BucketBoundaries(bounds));
  return handle;
}

std::string MetricsRegistry::render() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

void Counter::add(double amount) const {
  static_cast<prometheus::Counter*>(counter_)->Increment(amount);
}
double Counter::value() const {
  return static_cast<prometheus::Counter*>(counter_)->Value();
}
void Gauge::set(double value) const {
  static_cast<prometheus::Gauge*>(gauge_)->Set(value);
}
void Gauge::add(double amount) const {
  static_cast<prometheus::Gauge*>(gauge_)->Increment(amount);
}
double Gauge::value() const {
  return static_cast<prometheus::Gauge*>(gauge_)->Value();
}
void Histogram::observe(double value) const {
  static_cast<prometheus::Histogram*>(histogram_)->Observe(value);
}

}  // namespace isthmus
