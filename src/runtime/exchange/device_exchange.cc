#include "runtime/exchange/device_exchange.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <slimgrad/seed.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "runtime/exchange/engine.h"
#include "runtime/exchange/faults.h"
#include "torch/coding/uniform_device.h"

namespace slimgrad::exchange {
namespace {

constexpr auto kHeader = static_cast<std::int64_t>(kHeaderBytes);
constexpr std::int64_t kHeadBytes = 8;  // the largest magnitude, and how many are not finite
constexpr std::int64_t kNan = 0x7fc00000;
constexpr std::chrono::milliseconds kTimeForReasons{1500};

std::int64_t up_to_16(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }

// function(piece) in the order of shards.
template <typename Function>
void for_pieces(const std::vector<Frame>& frames, const Function& function) {
  for (const Frame& frame : frames)
    for (const Piece& piece : frame) function(piece);
}

}  // namespace

bool has_fixed_size(const Codec& codec) {
  return codec.kind == PayloadKind::kUniform && codec.coder == EntropyCoder::kNone &&
         codec.rate == 0;
}

// ---- slots -------------------------------------------------------------------------------------

// Where the parts of a slot are: the same in all slots of an exchange, with room for the largest.
struct DeviceExchange::Layout {
  int bits;
  std::int64_t num_heads = 0, plain_bytes = 0, code_bytes = 0;

  explicit Layout(const Job& job) : bits(job.codec.bits) {
    make_room(job.own);
    for (const auto& [peer, frames] : job.outgoing) make_room(frames);
    for (const auto& [peer, frames] : job.incoming) make_room(frames);
  }
  std::int64_t plain_begin() const { return kHeader + up_to_16(kHeadBytes * num_heads); }
  std::int64_t code_begin() const { return plain_begin() + plain_bytes; }
  std::int64_t slot_bytes() const { return code_begin() + code_bytes; }

  // function(piece, its bytes as they are, its codes), one of the two undefined.
  template <typename Function>
  void for_parts(const std::vector<Frame>& frames, const at::Tensor& slot,
                 const Function& function) const {
    std::int64_t head = kHeader, plain = plain_begin(), code = code_begin();
    for_pieces(frames, [&](const Piece& piece) {
      if (piece.is_plain) {
        const auto bytes = static_cast<std::int64_t>(piece.values.nbytes());
        function(piece, slot.narrow(0, plain, bytes), torch_ops::UniformCodes{});
        plain += up_to_16(bytes);
        return;
      }
      const std::int64_t bytes = torch_ops::uniform_bytes(piece.values.numel(), bits);
      function(piece, at::Tensor(),
               torch_ops::UniformCodes{slot.narrow(0, code, bytes),
                                       slot.narrow(0, head, kHeadBytes).view(at::kInt)});
      head += kHeadBytes;
      code += up_to_16(bytes);
    });
  }

 private:
  void make_room(const std::vector<Frame>& frames) {
    std::int64_t heads = 0, plain = 0, codes = 0;
    for_pieces(frames, [&](const Piece& piece) {
      if (piece.is_plain) {
        plain += up_to_16(static_cast<std::int64_t>(piece.values.nbytes()));
      } else {
        ++heads;
        codes += up_to_16(torch_ops::uniform_bytes(piece.values.numel(), bits));
      }
    });
    num_heads = std::max(num_heads, heads);
    plain_bytes = std::max(plain_bytes, plain);
    code_bytes = std::max(code_bytes, codes);
  }
};

// What the host looks at when it is there.
struct DeviceExchange::Status {
  Status(Group group, JobPtr job, const Header& header)
      : group(std::move(group)),
        job(std::move(job)),
        expected(header_alone(header)),
        is_done(this->job->device.type()) {}
  Group group;
  JobPtr job;
  at::Tensor expected, received;  // headers, on the host
  c10::Event is_done;
  std::string error;  // guarded by the exchange's mutex; empty: none
};

// The shard as codes. What rounding loses goes to residuals, in units of the sum.
void DeviceExchange::code(Job& job, const std::vector<Frame>& frames, const Layout& layout,
                          Stage stage, std::uint64_t seed, const at::Tensor& slot) {
  const bool is_stochastic = job.codec.rounding_in_force() == Rounding::kStochastic;
  layout.for_parts(
      frames, slot,
      [&](const Piece& piece, const at::Tensor& plain, const torch_ops::UniformCodes& codes) {
        if (plain.defined()) {
          plain.copy_(piece.values.view(at::kByte));
          return;
        }
        const at::Tensor& residual = piece.residual;
        if (residual.defined() && stage == kSpread) add_residual(piece);  // otherwise sum() did
        torch_ops::pack_uniform_into(piece.values, layout.bits, is_stochastic,
                                     derive_seed(seed, {piece.key}), codes);
        if (!residual.defined()) return;
        torch_ops::unpack_uniform_on_device(codes, layout.bits, false, piece.values);
        residual.sub_(piece.values);
        if (stage == kGather) residual.mul_(job.divide_by);
        residual.nan_to_num_(0.0, 0.0, 0.0);
      });
}

void DeviceExchange::decode(const Job& job, const std::vector<Frame>& frames, const Layout& layout,
                            const at::Tensor& slot) const {
  layout.for_parts(
      frames, slot,
      [&](const Piece& piece, const at::Tensor& plain, const torch_ops::UniformCodes& codes) {
        if (plain.defined())
          piece.values.copy_(plain.view(job.type));
        else
          torch_ops::unpack_uniform_on_device(codes, layout.bits, false, piece.values);
      });
}

// The sum over ranks, in their order, in float32, becomes the own shard: as Engine::sum().
void DeviceExchange::sum(const Job& job, const Layout& layout, const at::Tensor& slots,
                         int own) const {
  std::vector<at::Tensor> sums;
  std::vector<const Piece*> pieces;
  for_pieces(job.own, [&](const Piece& piece) {
    if (piece.residual.defined()) add_residual(piece);
    const bool in_place = job.type == at::kFloat && own <= 1;
    sums.push_back(in_place ? piece.values
                            : at::full({piece.values.numel()}, -0.0,
                                       piece.values.options().dtype(at::kFloat)));
    pieces.push_back(&piece);
  });
  if (sums.empty()) return;
  for (std::int64_t rank = 0; rank < slots.size(0); ++rank) {
    std::size_t i = 0;
    if (rank == own) {
      for (const Piece* piece : pieces) {
        const at::Tensor& one = sums[i++];
        if (!one.is_same(piece->values))
          one.add_(piece->residual.defined() ? piece->residual : piece->values);
      }
      continue;
    }
    layout.for_parts(
        job.own, slots[rank],
        [&](const Piece& piece, const at::Tensor& plain, const torch_ops::UniformCodes& codes) {
          const at::Tensor& one = sums[i++];
          if (plain.defined()) {
            one.add_(plain.view(job.type));
          } else if (job.type == at::kFloat) {
            torch_ops::unpack_uniform_on_device(codes, layout.bits, true, one);
          } else {  // A value is rounded to its type before it is added.
            const at::Tensor values = at::empty_like(piece.values);
            torch_ops::unpack_uniform_on_device(codes, layout.bits, false, values);
            one.add_(values);
          }
        });
  }
  // By a tensor: a division by a number is a product with its reciprocal on CUDA.
  const at::Tensor divisor = at::full({}, job.divide_by, sums[0].options());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (job.divide_by != 1) sums[i].div_(divisor);
    if (pieces[i]->residual.defined()) pieces[i]->residual.copy_(sums[i]);
    if (!sums[i].is_same(pieces[i]->values)) pieces[i]->values.copy_(sums[i]);
  }
}

// ---- an exchange -------------------------------------------------------------------------------

namespace {

// A header in front of each of `slots`; heads that are 0.
void begin_slots(const at::Tensor& slots, const at::Tensor& header, std::int64_t num_heads) {
  slots.narrow(1, 0, kHeader).copy_(header.expand({slots.size(0), kHeader}));
  slots.narrow(1, kHeader, kHeadBytes * num_heads).zero_();
}
at::Tensor heads_of(const at::Tensor& slots, std::int64_t num_heads) {
  return slots.narrow(1, kHeader, kHeadBytes * num_heads)
      .view(at::kInt)
      .unflatten(1, {num_heads, 2});
}
// Pieces with NaN or Inf become NaN.
void mark_nonfinite(const at::Tensor& slots, std::int64_t num_heads) {
  const at::Tensor heads = heads_of(slots, num_heads);
  heads.select(2, 0).masked_fill_(heads.select(2, 1).ne(0), kNan);
}
// Slots with another header become NaN: all bits of their heads and plain pieces are set.
void mark_foreign(const at::Tensor& slots, const at::Tensor& header, std::int64_t code_begin) {
  const at::Tensor is_foreign = slots.narrow(1, 0, kHeader).ne(header).any(1, true);
  slots.narrow(1, kHeader, code_begin - kHeader).masked_fill_(is_foreign, 0xff);
}

}  // namespace

// Returns the headers of the last collective, on the device. Throws Fault.
at::Tensor DeviceExchange::exchange(const Group& group, Job& job, const at::Tensor& expected) {
  const Layout layout(job);
  const int rank = group->getRank(), size = group->getSize();
  const auto options = at::TensorOptions(job.device).dtype(at::kByte);
  const at::Tensor header = expected.to(job.device, true);
  const auto backend = group->getBackend(job.device.type());
  at::Tensor received = at::empty({size, layout.slot_bytes()}, options);

  // A rank that fails goes on as far as the others need it to, and says why.
  std::string stopped;
  const auto attempt = [&](const auto& step) {
    try {
      if (stopped.empty()) step();
    } catch (const std::exception& error) {
      stopped = first_line(error);
    }
  };
  const auto new_slots = [&](int count, Stage stage, const auto& code_slots) {
    const at::Tensor slots = at::empty({count, layout.slot_bytes()}, options);
    begin_slots(slots, header, layout.num_heads);
    attempt([&] {
      code_slots(slots, [&](const std::vector<Frame>& frames, int reader, const at::Tensor& slot) {
        code(job, frames, layout, stage,
             message_seed(job.draws, global_ranks_[static_cast<std::size_t>(rank)], stage, reader),
             slot);
      });
      mark_nonfinite(slots, layout.num_heads);
    });
    if (!stopped.empty()) {
      const std::string text = words_of(group, job, stopped);
      const at::Tensor stop = header_alone({.kind = MessageKind::kStopped, .text = text});
      slots.narrow(1, 0, kHeader).copy_(stop.expand({count, kHeader}));
    }
    return slots;
  };
  const auto wait_for = [&](const auto& collective) {
    try {
      collective()->wait();
    } catch (const std::exception& error) {
      throw Fault{"a rank of the group is gone or does not answer: " + first_line(error), true};
    }
    job.sent_ += (size - 1) * layout.slot_bytes();
    mark_foreign(received, header, layout.code_begin());
  };

  if (!job.summed_from.empty()) {
    at::Tensor sent = new_slots(size, kSpread, [&](const at::Tensor& slots, const auto& code_one) {
      for (const auto& [peer, frames] : job.outgoing) code_one(frames, peer, slots[peer]);
    });
    std::vector<std::int64_t> even;
    wait_for([&] { return backend->alltoall_base(received, sent, even, even); });
    attempt([&] { sum(job, layout, received, rank); });
  }
  if (!job.readers.empty()) {
    at::Tensor sent = new_slots(1, kGather, [&](const at::Tensor& slots, const auto& code_one) {
      code_one(job.own, -1, slots[0]);
    });
    wait_for([&] { return backend->_allgather_base(received, sent); });
    attempt([&] {
      decode(job, job.own, layout, received[rank]);
      for (const auto& [peer, frames] : job.incoming) decode(job, frames, layout, received[peer]);
    });
  }
  if (!stopped.empty()) throw Fault{stopped};
  return received.narrow(1, 0, kHeader);
}

std::function<void()> DeviceExchange::start(const Group& group, const JobPtr& job,
                                            std::uint64_t number) {
  look();
  {
    const std::lock_guard lock(mutex_);
    if (!error_.empty())
      throw ExchangeError("[" + job->op +
                          "] an exchange of this group has failed before: " + error_);
  }
  const at::NoGradGuard no_grad;
  const c10::impl::VirtualGuardImpl streams(job->device.type());
  if (!stream_ || stream_->device() != job->device)
    stream_ = streams.getStreamFromGlobalPool(job->device);
  c10::Event is_ready(job->device.type());
  is_ready.record(streams.getStream(job->device));
  const auto status = std::make_shared<Status>(
      group, job,
      Header{.number = number,
             .num_bytes = static_cast<std::uint64_t>(Layout(*job).slot_bytes()),
             .settings = settings_hash(job->settings),
             .text = job->settings});
  {
    const c10::StreamGuard guard(*stream_);
    is_ready.block(*stream_);
    try {
      const at::Tensor received = exchange(group, *job, status->expected);
      status->received =
          at::empty(received.sizes(),
                    received.options().device(at::kCPU).pinned_memory(job->device.is_cuda()));
      status->received.copy_(received, true);
    } catch (const Fault& fault) {
      fail(*status, fault);
    }
    status->is_done.record(*stream_);
  }
  {
    const std::lock_guard lock(mutex_);
    open_.push_back(status);
  }
  job->outcome.complete();
  return [self = shared_from_this(), status] {
    const c10::Device device = status->job->device;
    status->is_done.block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    self->look();
    const std::lock_guard lock(self->mutex_);  // another look may have found it
    if (!status->error.empty()) throw ExchangeError(status->error);
  };
}

// ---- faults ------------------------------------------------------------------------------------

void DeviceExchange::look() {
  for (;;) {
    std::shared_ptr<Status> status;
    {
      const std::lock_guard lock(mutex_);
      if (open_.empty() || !open_.front()->is_done.query()) break;
      status = open_.front();
      open_.pop_front();
    }
    if (const auto fault = fault_in(*status)) fail(*status, *fault);
  }
}

// What the headers of the ranks say, if it is not what was expected of them.
std::optional<Fault> DeviceExchange::fault_in(const Status& status) const {
  const Header expected = read_header(bytes_of(status.expected));
  for (std::int64_t rank = 0; rank < status.received.size(0); ++rank) {
    try {
      const Header header = read_header(bytes_of(status.received[rank]));
      if (header.kind == MessageKind::kStopped) return Fault{header.text, false, true};
      check_header(header, expected, expected.num_bytes);
    } catch (const ExchangeError& error) {
      const int sender = global_ranks_[static_cast<std::size_t>(rank)];
      return Fault{"rank " + std::to_string(sender) + " sent " + error.what()};
    }
  }
  return std::nullopt;
}

// As the other ranks are told it.
std::string DeviceExchange::words_of(const Group& group, const Job& job,
                                     const std::string& text) const {
  const int rank = global_ranks_[static_cast<std::size_t>(group->getRank())];
  return "rank " + std::to_string(rank) + " stopped: [" + job.op + "] " + text;
}

void DeviceExchange::fail(Status& status, const Fault& fault) {
  // A rank that is gone may have had a reason, which it or another one writes to the store first.
  if (fault.is_loss) std::this_thread::sleep_for(kTimeForReasons);
  const Job& job = *status.job;
  const std::string own = fault.is_report ? fault.text : "[" + job.op + "] " + fault.text;
  const std::string told = fault.is_report ? own : words_of(status.group, job, fault.text);
  const std::string first = settled_cause(status.group, told);
  const std::lock_guard lock(mutex_);
  error_ = status.error = first == told ? own : first;
  throw ExchangeError(error_);
}

}  // namespace slimgrad::exchange
