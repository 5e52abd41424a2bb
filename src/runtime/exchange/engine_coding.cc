// What an engine does to values: frames to messages, messages to sums and to tensors.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "runtime/exchange/engine.h"
#include "runtime/exchange/frame_coding.h"

namespace slimgrad::exchange {

// The frame as a message. What rounding loses goes to residuals, in units of the sum.
at::Tensor Engine::code(Job& job, std::size_t index, const Frame& frame, Stage stage,
                        std::uint64_t seed) {
  const auto room = static_cast<std::int64_t>(kHeaderBytes + frame_bound(frame, job.type));
  at::Tensor buffer = buffers_.take(room);
  bool replace = stage == kGather || !job.for_all.empty();  // by what readers decode
  for (const Piece& piece : frame) {
    if (!piece.residual.defined()) continue;
    replace = true;
    if (stage == kSpread) add_residual(piece);  // otherwise sum() did
  }
  std::uint8_t* const bytes = bytes_of(buffer);
  const std::size_t size =
      encode_frame(frame, job.codec, seed, replace,
                   {bytes + kHeaderBytes, static_cast<std::size_t>(room) - kHeaderBytes});
  for (const Piece& piece : frame) {
    if (!piece.residual.defined()) continue;
    piece.residual.sub_(piece.values);
    if (stage == kGather) piece.residual.mul_(job.divide_by);
    // NaN and Inf travel as they are: nothing of them is left to send.
    piece.residual.nan_to_num_(0.0, 0.0, 0.0);
  }
  Header header = header_of(job, MessageKind::kFrame);
  header.frame = static_cast<std::uint32_t>(index);
  header.num_pieces = static_cast<std::uint32_t>(frame.size());
  header.num_bytes = size;
  write_header(header, bytes);
  at::Tensor message = buffer.narrow(0, 0, static_cast<std::int64_t>(kHeaderBytes + size));
  const std::lock_guard lock(job.sends_mutex_);
  job.buffers_.push_back(std::move(buffer));
  return message;
}

// The sum over ranks, in their order, in float32, becomes the own frame.
void Engine::sum(Job& job, std::size_t index, const Frame& frame) {
  std::vector<at::Tensor> sums;
  std::int64_t num_values = 0;
  for (const Piece& piece : frame) {
    if (piece.residual.defined()) add_residual(piece);
    num_values += piece.values.numel();
  }
  // a + b is b + a: the first two summands may come in either order. But what a rank sent to all
  // has no zeros where others skip values, and a zero may have a sign: all begin with the same one.
  const bool is_sent_to_all = !job.for_all.empty();
  const bool in_place = job.type == at::kFloat && rank_ <= 1 && !is_sent_to_all;
  at::Tensor scratch;
  if (in_place) {
    for (const Piece& piece : frame) sums.push_back(piece.values);
  } else {
    scratch = buffers_.take(num_values, at::kFloat);
    std::int64_t first = 0;
    for (const Piece& piece : frame) {
      const std::int64_t count = piece.values.numel();
      sums.push_back(scratch.narrow(0, first, count).fill_(is_sent_to_all ? 0.0 : -0.0));
      first += count;
    }
  }
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_) {
      decode(job, rank, index, frame, sums, true);
    } else if (!in_place) {
      for (std::size_t i = 0; i < frame.size(); ++i)
        sums[i].add_(frame[i].residual.defined() ? frame[i].residual : frame[i].values);
    }
  }
  if (job.divide_by != 1)
    for (at::Tensor& one : sums) one.div_(job.divide_by);
  for (std::size_t i = 0; i < frame.size(); ++i)
    if (frame[i].residual.defined()) frame[i].residual.copy_(sums[i]);
  if (in_place) return;
  for (std::size_t i = 0; i < frame.size(); ++i) frame[i].values.copy_(sums[i]);
  buffers_.give_back(std::move(scratch));
}

// The next message of a peer, into tensors or added to them.
void Engine::decode(Job& job, int peer, std::size_t index, const Frame& frame,
                    const std::vector<at::Tensor>& tensors, bool add) {
  Asked asked = next(add ? sums_ : shards_);
  Header expected = header_of(job, MessageKind::kFrame);
  expected.frame = static_cast<std::uint32_t>(index);
  expected.num_pieces = static_cast<std::uint32_t>(frame.size());
  const Header header = receive(asked, expected);
  try {
    decode_frame({bytes_of(asked.buffer) + kHeaderBytes, header.num_bytes}, frame, job.codec,
                 job.type, tensors, add);
  } catch (const PayloadError& error) {
    throw Fault{"frame " + std::to_string(index) + " from rank " +
                std::to_string(global_ranks_[peer]) + ": " + error.what()};
  }
  buffers_.give_back(std::move(asked.buffer));
}

}  // namespace slimgrad::exchange
