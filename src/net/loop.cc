// SPDX-License-Identifier: Apache-2.0
// The event loop on Asio's io_context.
#include "net/loop.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <utility>

#include "base/clock.h"
#include "net/asio_internal.h"
#include "net/run_until.h"

namespace isthmus::net {
namespace {

namespace asio = boost::asio;

// Longer waits are cut to this, so that adding one to the clock can't overflow.
constexpr Duration kDelayMax = std::chrono::hours(24 * 365);

// A timer this late comes from a loop that was away: a stopped process, a long callback. What came meanwhile
// gets `kGrace` to be read first, or a peer would be judged silent whose answer lies in the socket.
constexpr Duration kLate = std::chrono::milliseconds(100);
constexpr Duration kGrace = std::chrono::milliseconds(50);
// A loop that is away during the grace too hasn't read anything: the timer waits again, but not for ever.
constexpr int kGracesMax = 8;

// Shared with the wait in flight, which may outlive the handle by one turn of the loop.
struct Wait {
  explicit Wait(asio::io_context& context) : timer(context) {}
  asio::steady_timer timer;
  std::function<void()> work;  // Empty once called or cancelled.
};

void arm(const std::shared_ptr<Wait>& wait, Duration delay, int graces_left) {
  wait->timer.expires_after(delay);
  wait->timer.async_wait([wait, graces_left](const boost::system::error_code&) {
    if (!wait->work) return;
    if (graces_left > 0 && asio::steady_timer::clock_type::now() - wait->timer.expiry() > kLate)
      return arm(wait, kGrace, graces_left - 1);
    // Moved out first: the work may destroy the handle.
    if (const auto due = std::exchange(wait->work, nullptr)) due();
  });
}

class OneShot final : public Loop::Timer {
 public:
  explicit OneShot(std::shared_ptr<Wait> wait) : wait_(std::move(wait)) {}
  ~OneShot() override {
    wait_->work = nullptr;
    wait_->timer.cancel();
  }

 private:
  std::shared_ptr<Wait> wait_;
};

void await_signal(asio::signal_set& signals, std::function<void(int)> work) {
  signals.async_wait([&signals, work = std::move(work)](const boost::system::error_code& error, int number) {
    if (error) return;
    work(number);
    await_signal(signals, work);
  });
}

}  // namespace

Loop::Loop() : asio_(std::make_unique<Asio>()) {}
Loop::~Loop() = default;

void Loop::run() {
  asio_->thread = std::this_thread::get_id();
  asio_->context.run();
  asio_->context.restart();  // Here rather than above, so that a stop() that came first isn't lost.
}

void Loop::stop() {
  asio_->context.stop();
}

void Loop::post(std::function<void()> work) {
  asio::post(asio_->context, std::move(work));
}

std::unique_ptr<Loop::Timer> Loop::after(Duration delay, std::function<void()> work) {
  auto wait = std::make_shared<Wait>(asio_->context);
  wait->work = std::move(work);
  arm(wait, std::clamp(delay, Duration::zero(), kDelayMax), kGracesMax);
  return std::make_unique<OneShot>(std::move(wait));
}

bool Loop::in_loop_thread() const {
  return asio_->thread.load() == std::this_thread::get_id();
}

void Loop::on_signal(std::function<void(int)> work) {
  ISTHMUS_CHECK(!asio_->signals);
  // A closed pipe or socket is an error of that write, not the end of the process.
  (void)std::signal(SIGPIPE, SIG_IGN);
  asio_->signals.emplace(asio_->context, SIGINT, SIGTERM);
  await_signal(*asio_->signals, std::move(work));
}

bool run_until(Loop& loop, const std::function<bool()>& done, Duration limit) {
  asio::io_context& context = loop.asio().context;
  loop.asio().thread = std::this_thread::get_id();
  const Instant end = now() + limit;
  while (!done()) {
    const Duration left = end - now();
    if (left <= Duration::zero() || context.run_one_for(left) == 0) return done();
  }
  return true;
}

}  // namespace isthmus::net
