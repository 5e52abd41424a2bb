#include <slimgrad/diloco.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <sstream>

#include <slimgrad/seed.h>
#include <slimgrad/version.h>

#include "base/check.h"
#include "runtime/exchange/codec_words.h"
#include "runtime/outer/agreement.h"
#include "runtime/outer/rounds.h"

namespace slimgrad {
namespace {

using exchange::in_words;
using outer::Round;
using outer::SharedTensor;

constexpr char kDiLoCo[] = "DiLoCo";

// How many of an exchange were made before: models that share one draw by themselves.
std::uint64_t number_in(const std::shared_ptr<Exchange>& exchange) {
  static std::mutex mutex;
  static auto& counts = *new std::map<std::weak_ptr<Exchange>, std::uint64_t, std::owner_less<>>;
  const std::lock_guard lock(mutex);
  std::erase_if(counts, [](const auto& entry) { return entry.first.expired(); });
  return counts[exchange]++;
}

void check_options(const DiLoCoOptions& options) {
  options.codec.check();
  check(options.every >= 1, kDiLoCo, "every to be a number of steps, at least 1", options.every);
  check(options.fragments >= 1 && options.fragments <= options.every, kDiLoCo,
        "fragments to be 1 to every, " + std::to_string(options.every), options.fragments);
  check(options.overlap >= 0 && options.overlap < options.every, kDiLoCo,
        "overlap to be fewer steps than every, " + std::to_string(options.every), options.overlap);
  check(options.feedback > 0 && options.feedback <= 1, kDiLoCo,
        "the share of error feedback to be above 0 and at most 1", options.feedback);
  check(options.feedback == 1 || options.codec.error_feedback, kDiLoCo,
        "a share of error feedback with a codec that has it", options.codec.name());
  const OuterOptions& outer = options.outer;
  check(std::isfinite(outer.lr) && outer.lr > 0, kDiLoCo, "the outer lr to be finite and above 0",
        outer.lr);
  check(outer.momentum >= 0 && outer.momentum < 1, kDiLoCo,
        "the outer momentum to be 0 to less than 1", outer.momentum);
}

// How many tensors of which names, sizes and types.
std::string fingerprint(const std::vector<SharedTensor>& tensors, bool of_buffers) {
  std::uint64_t mixed = 0;
  std::int64_t count = 0, values = 0;
  for (const SharedTensor& one : tensors) {
    if (one.is_buffer != of_buffers) continue;
    mixed = derive_seed(mixed,
                        {std::string_view(one.name), static_cast<int>(one.in_model.scalar_type())});
    for (const std::int64_t size : one.shared.sizes()) mixed = derive_seed(mixed, {size});
    ++count;
    values += one.shared.numel();
  }
  std::ostringstream text;
  text << count << " of " << values << " values, which are " << std::hex << mixed;
  return text.str();
}

outer::Settings settings_of(const DiLoCoOptions& options,
                            const std::vector<SharedTensor>& tensors) {
  outer::Settings settings = {
      {"slimgrad", SLIMGRAD_VERSION},
      {"every", in_words(options.every)},
      {"fragments", in_words(options.fragments)},
      {"overlap", in_words(options.overlap)},
      {"share of error feedback", in_words(options.feedback)},
      {"outer lr", in_words(options.outer.lr)},
      {"outer momentum", in_words(options.outer.momentum)},
      {"outer nesterov", in_words(options.outer.nesterov)},
      {"parameters", fingerprint(tensors, false)},
      {"buffers", fingerprint(tensors, true)},
  };
  exchange::visit_words(options.codec, [&](const char* name, const std::string& value) {
    settings.emplace_back(std::string("codec ") + name, value);
  });
  return settings;
}

}  // namespace

// ---- rounds ------------------------------------------------------------------------------------

void outer::Round::wait() const {
  for (const auto& one : pending) one->wait();
}

void DiLoCo::Rounds::check_good() const {
  if (!error.empty()) throw ExchangeError(error);
}

void DiLoCo::Rounds::fail(const std::exception& cause) {
  error = "[DiLoCo] an exchange did not come to its end; weights that ranks share are those of " +
          std::to_string(num_applied) + " before: " + cause.what();
  throw ExchangeError(error);
}

void DiLoCo::Rounds::begin(std::size_t fragment, std::int64_t due) {
  Round round{.fragment = fragment, .due = due};
  Exchange::Tensors parameters, buffers, residuals;
  std::vector<std::int64_t> parameter_keys, buffer_keys;
  for (const std::size_t place : fragments[fragment]) {
    const SharedTensor& one = tensors[place];
    const at::Tensor now = one.now();
    round.means.push_back(one.distance(now));
    round.handed_in.push_back(due > num_steps ? now.clone() : at::Tensor());
    round.residuals.push_back(one.residual.defined() ? one.residual.mul(options.feedback)
                                                     : at::Tensor());
    (one.is_buffer ? buffers : parameters).push_back(round.means.back());
    (one.is_buffer ? buffer_keys : parameter_keys).push_back(one.key);
    if (!one.is_buffer) residuals.push_back(round.residuals.back());
  }
  const double world = exchange->size();
  const auto all_reduce = [&](const Exchange::Tensors& means, const Codec& codec,
                              const std::vector<std::int64_t>& keys) {
    if (means.empty()) return;
    round.pending.push_back(exchange->all_reduce(
        means, codec, {.step = num_begun, .divide_by = world, .keys = keys}, residuals));
  };
  try {
    all_reduce(parameters, options.codec, parameter_keys);
    all_reduce(buffers, Codec::parse("lossless"), buffer_keys);
  } catch (const ExchangeError& cause) {
    fail(cause);
  }
  ++num_begun;
  begun_after[fragment] = num_steps;
  under_way.push_back(std::move(round));
}

void DiLoCo::Rounds::apply(Round& round) {
  const std::vector<std::size_t>& places = fragments[round.fragment];
  for (std::size_t i = 0; i < places.size(); ++i) {
    SharedTensor& one = tensors[places[i]];
    one.move(round.means[i], options.outer);
    if (one.residual.defined()) one.residual = round.residuals[i];
    one.take_up(round.handed_in[i]);
  }
  for (const auto& one : round.pending) sent_bytes += one->sent_bytes();
  ++num_applied;
}

// ---- DiLoCo ------------------------------------------------------------------------------------

DiLoCo::DiLoCo(std::shared_ptr<Exchange> exchange, DiLoCoTensors tensors,
               std::function<void()> inner, const DiLoCoOptions& options) {
  check(exchange != nullptr, kDiLoCo, "an exchange", "none");
  const at::NoGradGuard no_grad;
  std::vector<SharedTensor> shared;
  std::vector<std::vector<std::size_t>> fragments;
  outer::check_agreement(*exchange, kDiLoCo, [&] {
    check_options(options);
    // Counted only where all goes well, which is on all ranks or none.
    shared = outer::shared_tensors(tensors, options, 0);
    fragments = outer::fragments_of(shared, options.fragments);
    return settings_of(options, shared);
  });
  const std::uint64_t number = number_in(exchange);
  for (SharedTensor& one : shared)
    one.key =
        static_cast<std::int64_t>(derive_seed(number, {"DiLoCo", std::string_view(one.name)}));
  // In the type of the model, so that nobody's shared values are finer than those of the others.
  Exchange::Tensors copies;
  for (const SharedTensor& one : shared) copies.push_back(one.shared);
  exchange->broadcast(copies, Codec::parse("lossless"))->wait();
  for (const SharedTensor& one : shared) one.take_up(at::Tensor());
  std::vector<std::int64_t> begun_after(fragments.size(), -1);
  rounds_ = std::make_unique<Rounds>(Rounds{.exchange = std::move(exchange),
                                            .inner = std::move(inner),
                                            .options = options,
                                            .tensors = std::move(shared),
                                            .fragments = std::move(fragments),
                                            .begun_after = std::move(begun_after)});
}

DiLoCo::~DiLoCo() = default;

bool DiLoCo::step() {
  begin_step();
  return end_step();
}

void DiLoCo::synchronize() {
  begin_last();
  end_step();
  begin_all();
  end_step();
}

void DiLoCo::begin_step() {
  Rounds& rounds = *rounds_;
  rounds.check_good();
  if (rounds.inner) rounds.inner();
  const at::NoGradGuard no_grad;
  ++rounds.num_steps;
  const DiLoCoOptions& options = rounds.options;
  for (std::size_t i = 0; i < rounds.fragments.size(); ++i) {
    // The last one's turn is after every `every` steps, the others' before.
    const std::int64_t turn =
        static_cast<std::int64_t>(i + 1) * options.every / options.fragments % options.every;
    if (rounds.num_steps % options.every == turn)
      rounds.begin(i, rounds.num_steps + options.overlap);
  }
}

void DiLoCo::begin_last() {
  rounds_->check_good();
  for (Round& round : rounds_->under_way) round.due = rounds_->num_steps;
}

void DiLoCo::begin_all() {
  rounds_->check_good();
  const at::NoGradGuard no_grad;
  // What was exchanged after the last step has gone no distance: another round of it would be
  // momentum alone.
  for (std::size_t i = 0; i < rounds_->fragments.size(); ++i)
    if (rounds_->begun_after[i] != rounds_->num_steps) rounds_->begin(i, rounds_->num_steps);
}

bool DiLoCo::wait_for(std::chrono::milliseconds time) {
  rounds_->check_good();
  const auto until = std::chrono::steady_clock::now() + time;
  try {
    for (const Round& round : rounds_->under_way) {
      if (round.due > rounds_->num_steps) continue;
      for (const auto& one : round.pending) {
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
            until - std::chrono::steady_clock::now());
        if (!one->wait_for(std::max(left, std::chrono::milliseconds(0)))) return false;
      }
    }
  } catch (const ExchangeError& cause) {
    rounds_->fail(cause);
  }
  return true;
}

bool DiLoCo::end_step() {
  Rounds& rounds = *rounds_;
  rounds.check_good();
  const at::NoGradGuard no_grad;
  const auto is_due = [&](const Round& round) { return round.due <= rounds.num_steps; };
  try {
    for (const Round& round : rounds.under_way)
      if (is_due(round)) round.wait();
  } catch (const ExchangeError& cause) {
    rounds.fail(cause);
  }
  bool any = false;
  for (Round& round : rounds.under_way) {
    if (!is_due(round)) continue;
    rounds.apply(round);
    any = true;
  }
  std::erase_if(rounds.under_way, is_due);
  if (any) {
    rounds.steps_of_last = rounds.num_steps;
    rounds.begun_at_last = rounds.num_begun;
  }
  return any;
}

DiLoCo::State DiLoCo::state_dict(bool own) const { return rounds_->state_dict(own); }
void DiLoCo::load_state_dict(const State& state) { rounds_->load_state_dict(state); }
std::int64_t DiLoCo::num_steps() const { return rounds_->num_steps; }
std::int64_t DiLoCo::num_rounds() const { return rounds_->num_applied; }
std::int64_t DiLoCo::sent_bytes() const { return rounds_->sent_bytes; }
const DiLoCoOptions& DiLoCo::options() const { return rounds_->options; }

}  // namespace slimgrad
