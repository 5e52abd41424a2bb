// all_reduce, reduce_scatter, all_gather and broadcast of lists of tensors, coded.
#include <slimgrad/exchange.h>

#include <ATen/ops/empty_strided.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <numeric>
#include <sstream>

#include "base/check.h"
#include "runtime/exchange/codec_words.h"
#include "runtime/exchange/device_exchange.h"
#include "runtime/exchange/engine.h"
#include "torch/checks.h"
#include "torch/device/launcher.h"

namespace slimgrad {
namespace {

using exchange::Engine;
using exchange::FlatTensors;
using exchange::Frame;
using exchange::Job;
using exchange::JobPtr;
using exchange::Place;
using TensorVector = Exchange::Tensors;

constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

// ---- arguments
// -----------------------------------------------------------------------------------

// A flat view of a dense tensor in the order of its memory: what is exchanged is written in place,
// so nothing may be copied.
at::Tensor flat(const at::Tensor& x, const char* op) {
  check(x.defined(), op, "a tensor", "none");
  check(torch_ops::is_float_dtype(x.scalar_type()), op,
        "tensors of type float32, bfloat16 or float16", c10::toString(x.scalar_type()));
  const at::Tensor values = x.detach();
  if (values.is_contiguous()) return values.view({-1});
  std::vector<std::int64_t> order(static_cast<std::size_t>(values.dim()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, [&](std::int64_t a, std::int64_t b) {
    return std::pair(values.stride(a), values.size(a)) >
           std::pair(values.stride(b), values.size(b));
  });
  const at::Tensor permuted = values.permute(order);
  check(permuted.is_contiguous(), op, "tensors without gaps", "strides of ", values.strides());
  return permuted.view({-1});
}

TensorVector flat(const TensorVector& tensors, const char* op) {
  TensorVector flats;
  for (const at::Tensor& x : tensors) flats.push_back(flat(x, op));
  return flats;
}

std::vector<TensorVector> flat(const std::vector<TensorVector>& lists, const char* op) {
  std::vector<TensorVector> flats;
  for (const TensorVector& tensors : lists) flats.push_back(flat(tensors, op));
  return flats;
}

// Empty for a codec without error feedback.
TensorVector flat_residuals(const TensorVector& residuals, const TensorVector& flats,
                            const Codec& codec, const char* op) {
  if (!codec.error_feedback) return {};
  check(residuals.size() == flats.size(), op, "a residual for each tensor with error feedback",
        residuals.size(), " for ", flats.size());
  TensorVector found;
  for (std::size_t i = 0; i < flats.size(); ++i) {
    const at::Tensor& residual = residuals[i];
    found.emplace_back();
    if (!residual.defined()) continue;
    check(residual.scalar_type() == at::kFloat && residual.device() == flats[i].device() &&
              residual.is_contiguous() && residual.numel() == flats[i].numel(),
          op, "residuals to be contiguous, float32, and of the tensors' sizes and device",
          c10::toString(residual.scalar_type()), " of ", residual.numel(), " on ",
          residual.device().str(), " for ", flats[i].numel(), " values on ",
          flats[i].device().str());
    found.back() = residual.detach().view({-1});
  }
  return found;
}

std::vector<std::int64_t> keys_of(const ExchangeOptions& options, std::size_t count,
                                  const char* op) {
  std::vector<std::int64_t> keys = options.keys;
  if (keys.empty()) {
    keys.resize(count);
    std::iota(keys.begin(), keys.end(), 0);
  }
  check(keys.size() == count, op, "a key for each tensor", keys.size(), " for ", count);
  return keys;
}

void check_sizes(const TensorVector& got, const TensorVector& wanted, const char* op,
                 const char* expected) {
  const auto sizes = [](const TensorVector& tensors) {
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& x : tensors) sizes.push_back(x.numel());
    return sizes;
  };
  const auto types = [](const TensorVector& tensors) {
    std::vector<at::ScalarType> types;
    for (const at::Tensor& x : tensors) types.push_back(x.scalar_type());
    return types;
  };
  check(sizes(got) == sizes(wanted), op, expected, at::IntArrayRef(sizes(got)), " for ",
        at::IntArrayRef(sizes(wanted)));
  check(types(got) == types(wanted), op, "the same types in both", "others");
}

void copy_if_apart(const TensorVector& to, const TensorVector& from) {
  for (std::size_t i = 0; i < to.size(); ++i)
    if (to[i].const_data_ptr() != from[i].const_data_ptr()) to[i].copy_(from[i]);
}

// ---- devices
// -------------------------------------------------------------------------------------

// The device of all tensors.
c10::Device device_of(const TensorVector& tensors, const char* op) {
  const c10::Device device = tensors.empty() ? c10::kCPU : tensors[0].device();
  for (const at::Tensor& x : tensors)
    check(x.device() == device, op, "tensors on one device", "some on ", device.str(), " and on ",
          x.device().str());
  check(!device.is_meta(), op, "tensors with values", "some on meta");
  return device;
}

TensorVector joined(const std::vector<TensorVector>& lists) {
  TensorVector all;
  for (const TensorVector& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

// Whether tensors on a device travel from there. A codec whose sizes depend on values codes on the
// host.
bool travels_from(c10::Device device, const Codec& codec, const exchange::Group& group) {
  if (!group || !exchange::has_fixed_size(codec) || !torch_ops::has_device_kernels(device.type()))
    return false;
  try {
    group->getBackend(device.type());
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// Tensors of a device on the host, where pinned memory makes copies faster, and back.
class HostCopies {
 public:
  TensorVector of(const TensorVector& tensors) {
    TensorVector copies;
    for (const at::Tensor& x : tensors) copies.push_back(x.defined() ? copy_of(x) : x);
    return copies;
  }
  std::vector<TensorVector> of(const std::vector<TensorVector>& lists) {
    std::vector<TensorVector> copies;
    for (const TensorVector& list : lists) copies.push_back(of(list));
    return copies;
  }
  // The host waits, once for all copies.
  void wait() const {
    if (pairs_.empty()) return;
    const c10::Device device = pairs_[0].first.device();
    c10::Event is_there(device.type());
    is_there.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    is_there.synchronize();
  }
  // Copies what the exchange has written; once.
  std::function<void()> back() && {
    struct Back {
      std::once_flag once;
      std::vector<std::pair<at::Tensor, at::Tensor>> pairs;
    };
    const auto back = std::make_shared<Back>();
    back->pairs = std::move(pairs_);
    return [back] {
      std::call_once(back->once, [&] {
        for (const auto& [x, copy] : back->pairs) x.detach().copy_(copy, true);
      });
    };
  }

 private:
  at::Tensor copy_of(const at::Tensor& x) {
    at::Tensor copy = at::empty_strided(
        x.sizes(), x.strides(), x.options().device(at::kCPU).pinned_memory(x.device().is_cuda()));
    copy.copy_(x.detach(), true);
    pairs_.emplace_back(x, copy);
    return copy;
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;
};

// ---- frames
// --------------------------------------------------------------------------------------

// Those of one type that are not empty, with their keys and residuals.
FlatTensors of_type(at::ScalarType type, const TensorVector& flats,
                    const std::vector<std::int64_t>& keys, const TensorVector& residuals = {}) {
  FlatTensors chosen;
  for (std::size_t i = 0; i < flats.size(); ++i) {
    if (flats[i].scalar_type() != type || flats[i].numel() == 0) continue;
    chosen.values.push_back(flats[i]);
    chosen.keys.push_back(keys[i]);
    if (!residuals.empty()) chosen.residuals.push_back(residuals[i]);
  }
  return chosen;
}

std::vector<Frame> all_frames(const FlatTensors& tensors, const Codec& codec) {
  return exchange::frames_between(tensors, {}, {tensors.values.size(), 0}, codec);
}

}  // namespace

// ---- Exchange
// ------------------------------------------------------------------------------------

std::shared_ptr<Exchange> Exchange::of(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                       std::vector<int> global_ranks) {
  check(static_cast<bool>(group), "Exchange", "a process group", "none");
  const auto size = static_cast<std::size_t>(group->getSize());
  if (global_ranks.empty()) {
    global_ranks.resize(size);
    std::iota(global_ranks.begin(), global_ranks.end(), 0);
  }
  check(global_ranks.size() == size, "Exchange", "a rank in the whole job for each of the group's",
        global_ranks.size(), " for ", size);
  static std::mutex mutex;
  static auto& known = *new std::map<std::string, std::weak_ptr<Exchange>>;  // outlives threads
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<Exchange>& entry = known[group->getGroupName()];
  std::shared_ptr<Exchange> found = entry.lock();
  if (!found || !found->engine_->serves(group)) {
    found.reset(new Exchange(std::make_shared<Engine>(group, std::move(global_ranks))));
    entry = found;
  }
  return found;
}

Exchange::Exchange(std::shared_ptr<Engine> engine)
    : engine_(std::move(engine)),
      on_device_(std::make_shared<exchange::DeviceExchange>(engine_->global_ranks())) {}

int Exchange::rank() const { return engine_->rank(); }
int Exchange::size() const { return engine_->size(); }
int Exchange::global_rank(int rank) const { return engine_->global_rank(rank); }

JobPtr Exchange::new_job(const char* op, const Codec& codec, at::ScalarType type,
                         const ExchangeOptions& options) {
  codec.check();
  check(!options.step || *options.step >= 0, op, "step to be at least 0", options.step.value_or(0));
  check(std::isfinite(options.divide_by) && options.divide_by != 0, op,
        "divide_by to be finite and not 0", options.divide_by);
  auto job = std::make_shared<Job>();
  job->op = op;
  job->codec = codec;
  job->type = type;
  job->divide_by = options.divide_by;
  const char* const counted = options.step ? "step" : "call";
  const std::uint64_t count =
      options.step ? static_cast<std::uint64_t>(*options.step) : engine_->num_jobs();
  job->draws = exchange::exchange_seed(codec.seed, op, engine_->group_name(), counted, count);
  std::ostringstream words;
  words << "op=" << op << " type=" << c10::toString(type) << " " << counted << "=" << count
        << " divide_by=" << exchange::in_words(options.divide_by);
  exchange::visit_words(codec, [&](const char* name, const std::string& value) {
    words << " " << name << "=" << value;
  });
  job->settings = words.str();
  return job;
}

std::shared_ptr<PendingExchange> Exchange::start(std::vector<JobPtr> jobs) {
  std::vector<std::function<void()>> finish;
  const auto on_device = [](const JobPtr& job) { return !job->device.is_cpu(); };
  const bool are_on_device = std::ranges::any_of(jobs, on_device);
  if (!are_on_device) engine_->check_backend();
  if (engine_->size() > 1 && are_on_device) {
    for (const JobPtr& job : jobs)
      finish.push_back(on_device_->start(engine_->group(), job, engine_->count_job()));
  } else if (engine_->size() > 1) {
    engine_->submit(jobs);
  } else {
    // A sum over one rank: nothing is sent, so nothing is lost.
    for (const JobPtr& job : jobs) {
      if (job->divide_by != 1)
        for (const Frame& frame : job->own)
          for (const exchange::Piece& piece : frame) piece.values.detach().div_(job->divide_by);
      job->outcome.complete();
    }
  }
  if (finish.empty()) return std::make_shared<PendingExchange>(std::move(jobs));
  return std::make_shared<PendingExchange>(std::move(jobs), [finish] {
    for (const auto& one : finish) one();
  });
}

std::shared_ptr<PendingExchange> Exchange::all_reduce(const TensorVector& tensors,
                                                      const Codec& codec,
                                                      const ExchangeOptions& options,
                                                      const TensorVector& residuals) {
  constexpr char op[] = "all_reduce";
  const c10::Device device = device_of(tensors, op);
  if (!device.is_cpu() && !travels_from(device, codec, engine_->group())) {
    HostCopies copies;
    const TensorVector here = copies.of(tensors), fed_back = copies.of(residuals);
    copies.wait();
    const auto pending = all_reduce(here, codec, options, fed_back);
    return pending->then(std::move(copies).back());
  }
  const TensorVector flats = flat(tensors, op);
  const TensorVector flat_feedback = flat_residuals(residuals, flats, codec, op);
  const std::vector<std::int64_t> keys = keys_of(options, flats.size(), op);
  std::vector<JobPtr> jobs;
  for (const at::ScalarType type : kTypes) {
    const FlatTensors some = of_type(type, flats, keys, flat_feedback);
    if (some.values.empty()) continue;
    JobPtr job = new_job(op, codec, type, options);
    job->device = device;
    job->summed_from = engine_->peers();
    if (codec.sends_to_all()) {
      job->for_all = all_frames(some, codec);
      job->own = all_frames(of_type(type, flats, keys), codec);
      jobs.push_back(std::move(job));
      continue;
    }
    std::vector<std::int64_t> lengths;
    for (const at::Tensor& x : some.values) lengths.push_back(x.numel());
    Place begin;
    const std::vector<Place> ends = exchange::shard_ends(lengths, size(), codec.min_elements);
    for (int owner = 0; owner < size(); ++owner) {
      std::vector<Frame> shard =
          exchange::frames_between(some, begin, ends[static_cast<std::size_t>(owner)], codec);
      begin = ends[static_cast<std::size_t>(owner)];
      if (owner == rank())
        job->own = std::move(shard);
      else
        job->outgoing[owner] = job->incoming[owner] = std::move(shard);
    }
    job->readers = engine_->peers();
    jobs.push_back(std::move(job));
  }
  return start(std::move(jobs));
}

std::shared_ptr<PendingExchange> Exchange::reduce_scatter(
    const TensorVector& outputs, const std::vector<TensorVector>& inputs, const Codec& codec,
    const ExchangeOptions& options, const std::vector<TensorVector>& residuals) {
  constexpr char op[] = "reduce_scatter";
  const c10::Device device = device_of(joined({outputs, joined(inputs)}), op);
  if (!device.is_cpu() && !travels_from(device, codec, engine_->group())) {
    HostCopies copies;
    const TensorVector sums = copies.of(outputs);
    const std::vector<TensorVector> here = copies.of(inputs), fed_back = copies.of(residuals);
    copies.wait();
    const auto pending = reduce_scatter(sums, here, codec, options, fed_back);
    return pending->then(std::move(copies).back());
  }
  const TensorVector flats = flat(outputs, op);
  const std::vector<TensorVector> lists = flat(inputs, op);
  const auto world = static_cast<std::size_t>(size()), own = static_cast<std::size_t>(rank());
  check(lists.size() == world, op, "an input for each rank", lists.size(), " for ", world);
  check_sizes(flats, lists[own], op, "outputs of the sizes of this rank's inputs");
  std::vector<TensorVector> fed_back(world);
  if (codec.error_feedback) {
    check(residuals.size() == world, op, "residuals for each rank with error feedback",
          residuals.size(), " for ", world);
    for (std::size_t i = 0; i < world; ++i)
      fed_back[i] = flat_residuals(residuals[i], lists[i], codec, op);
  }
  const std::vector<std::int64_t> keys = keys_of(options, flats.size(), op);
  for (const TensorVector& list : lists)
    check(list.size() == flats.size(), op, "as many inputs for each rank as outputs", list.size(),
          " for ", flats.size());
  copy_if_apart(flats, lists[own]);
  std::vector<JobPtr> jobs;
  for (const at::ScalarType type : kTypes) {
    const FlatTensors some = of_type(type, flats, keys);
    if (some.values.empty()) continue;
    JobPtr job = new_job(op, codec, type, options);
    job->device = device;
    job->own = all_frames(some, codec);
    for (const int peer : engine_->peers()) {
      const auto i = static_cast<std::size_t>(peer);
      job->outgoing[peer] = all_frames(of_type(type, lists[i], keys, fed_back[i]), codec);
    }
    job->summed_from = engine_->peers();
    jobs.push_back(std::move(job));
  }
  return start(std::move(jobs));
}

std::shared_ptr<PendingExchange> Exchange::all_gather(const std::vector<TensorVector>& outputs,
                                                      const TensorVector& tensors,
                                                      const Codec& codec,
                                                      const ExchangeOptions& options) {
  constexpr char op[] = "all_gather";
  const c10::Device device = device_of(joined({tensors, joined(outputs)}), op);
  if (!device.is_cpu() && !travels_from(device, codec, engine_->group())) {
    HostCopies copies;
    const TensorVector here = copies.of(tensors);
    const std::vector<TensorVector> gathered = copies.of(outputs);
    copies.wait();
    const auto pending = all_gather(gathered, here, codec, options);
    return pending->then(std::move(copies).back());
  }
  const std::vector<TensorVector> lists = flat(outputs, op);
  const TensorVector flats = flat(tensors, op);
  const auto world = static_cast<std::size_t>(size()), own = static_cast<std::size_t>(rank());
  check(lists.size() == world, op, "an output for each rank", lists.size(), " for ", world);
  check_sizes(lists[own], flats, op, "this rank's outputs to have the sizes of its tensors");
  copy_if_apart(lists[own], flats);
  std::vector<JobPtr> jobs;
  for (const at::ScalarType type : kTypes) {
    std::vector<FlatTensors> some;
    for (const TensorVector& list : lists)
      some.push_back(of_type(type, list, keys_of({}, list.size(), op)));
    if (std::ranges::all_of(some, [](const FlatTensors& one) { return one.values.empty(); }))
      continue;
    JobPtr job = new_job(op, codec, type, options);
    job->device = device;
    job->own = all_frames(some[own], codec);
    for (const int peer : engine_->peers())
      job->incoming[peer] = all_frames(some[static_cast<std::size_t>(peer)], codec);
    job->readers = engine_->peers();
    jobs.push_back(std::move(job));
  }
  return start(std::move(jobs));
}

std::shared_ptr<PendingExchange> Exchange::broadcast(const TensorVector& tensors,
                                                     const Codec& codec, int source,
                                                     const ExchangeOptions& options) {
  constexpr char op[] = "broadcast";
  check(source >= 0 && source < size(), op, "source to be a rank of the group", source);
  if (!device_of(tensors, op).is_cpu()) {
    HostCopies copies;
    const TensorVector here = copies.of(tensors);
    copies.wait();
    return broadcast(here, codec, source, options)->then(std::move(copies).back());
  }
  const TensorVector flats = flat(tensors, op);
  std::vector<JobPtr> jobs;
  for (const at::ScalarType type : kTypes) {
    const FlatTensors some = of_type(type, flats, keys_of({}, flats.size(), op));
    if (some.values.empty()) continue;
    JobPtr job = new_job(op, codec, type, options);
    if (rank() == source) {
      job->own = all_frames(some, codec);
      job->readers = engine_->peers();
    } else {
      job->incoming[source] = all_frames(some, codec);
    }
    jobs.push_back(std::move(job));
  }
  return start(std::move(jobs));
}

// ---- PendingExchange
// -----------------------------------------------------------------------------

void PendingExchange::wait() const {
  for (const JobPtr& job : jobs_) job->outcome.wait();
  if (finish_) finish_();
}

std::shared_ptr<PendingExchange> PendingExchange::then(std::function<void()> finish) const {
  return std::make_shared<PendingExchange>(jobs_, std::move(finish));
}

bool PendingExchange::wait_for(std::chrono::milliseconds time) const {
  const auto until = std::chrono::steady_clock::now() + time;
  const bool are_there =
      std::ranges::all_of(jobs_, [&](const JobPtr& job) { return job->outcome.wait_until(until); });
  if (are_there && finish_) finish_();
  return are_there;
}

bool PendingExchange::is_complete() const {
  return std::ranges::all_of(jobs_, [](const JobPtr& job) { return job->outcome.is_complete(); });
}

std::int64_t PendingExchange::sent_bytes() const {
  std::int64_t sent = 0;
  for (const JobPtr& job : jobs_) sent += job->sent_bytes();
  return sent;
}

c10::intrusive_ptr<c10::ivalue::Future> PendingExchange::future(const at::Tensor& result) const {
  auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  const auto left = std::make_shared<std::atomic<std::size_t>>(jobs_.size());
  const auto settle = [future, left, result, finish = finish_](std::exception_ptr error) {
    if (error) return future->setErrorIfNeeded(error);
    if (left->fetch_sub(1) > 1 || future->completed()) return;
    try {
      if (finish) finish();
      future->markCompleted(result);
    } catch (...) {
      future->setErrorIfNeeded(std::current_exception());
    }
  };
  for (const JobPtr& job : jobs_) job->outcome.when_settled(settle);
  if (jobs_.empty()) settle(nullptr);
  return future;
}

}  // namespace slimgrad
