// The state of a DiLoCo: names to tensors.
//
//   version, step, begun, rounds, own, rank, ranks     numbers
//   shared/NAME                                        of parameters and buffers, float32
//   momentum/NAME, residual/NAME                       where there are some
//   K/due, K/fragment, K/mean/NAME, ...                of a state of `own`: the K-th round under
//                                                      way, and after which step rounds of
//   begun after/I of N                                 fragment I of N began last
#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <sstream>

#include "arrays/coding/checksum.h"
#include "base/check.h"
#include "runtime/outer/agreement.h"
#include "runtime/outer/rounds.h"
#include "torch/elements.h"

namespace slimgrad {
namespace {

using outer::Round;
using outer::SharedTensor;

constexpr char kLoad[] = "DiLoCo.load_state_dict";
constexpr std::int64_t kVersion = 1;
constexpr std::int64_t kMostCounted = std::int64_t{1} << 48;

std::string numbered(std::size_t number, const std::string& field) {
  return std::to_string(number) + "/" + field;
}

std::string begun_name(std::size_t fragment, std::size_t of) {
  return "begun after/" + std::to_string(fragment) + " of " + std::to_string(of);
}

// Reads entries, and says what is wrong with one.
class Reader {
 public:
  explicit Reader(const DiLoCo::State& state) : state_(state) {}

  bool has(const std::string& name) const { return state_.contains(name); }
  std::int64_t number(const std::string& name) const {
    const at::Tensor found = entry(name);
    check(found.numel() == 1 && at::isIntegralType(found.scalar_type(), /*includeBool=*/true),
          kLoad, name + " to be a whole number", found.sizes(), " of ",
          c10::toString(found.scalar_type()));
    const auto number = found.item<std::int64_t>();
    check(number >= 0 && number <= kMostCounted, kLoad, name + " to be 0 to 2^48", number);
    return number;
  }
  // A copy, of the shape of `like`.
  at::Tensor values(const std::string& name, const at::Tensor& like) const {
    const at::Tensor found = entry(name);
    check(found.sizes() == like.sizes() && at::isFloatingType(found.scalar_type()), kLoad,
          name + " to be float32 of shape " + in_brackets(like), in_brackets(found), " of ",
          c10::toString(found.scalar_type()));
    return found.detach().to(at::kCPU).to(at::kFloat).contiguous().clone();
  }

 private:
  at::Tensor entry(const std::string& name) const {
    const auto found = state_.find(name);
    check(found != state_.end() && found->value().defined(), kLoad, "a state with " + name, "none");
    return found->value();
  }
  static std::string in_brackets(const at::Tensor& x) {
    std::ostringstream text;
    text << x.sizes();
    return text.str();
  }

  const DiLoCo::State& state_;
};

// A hash of all shared values.
std::string hash_of(const std::vector<SharedTensor>& tensors) {
  std::string hashes;
  for (const SharedTensor& one : tensors) {
    const auto values = std::as_bytes(torch_ops::elements<float>(one.shared));
    hashes +=
        hash_text(hash128({reinterpret_cast<const std::uint8_t*>(values.data()), values.size()}));
  }
  return hash_text(hash128({reinterpret_cast<const std::uint8_t*>(hashes.data()), hashes.size()}));
}

}  // namespace

DiLoCo::State DiLoCo::Rounds::state_dict(bool own) const {
  const at::NoGradGuard no_grad;
  State state;
  const auto add_number = [&](const std::string& name, std::int64_t number) {
    state.insert(name, at::scalar_tensor(number, at::kLong));
  };
  const auto add = [&](const std::string& name, const at::Tensor& values) {
    if (values.defined()) state.insert(name, values.clone());
  };
  add_number("version", kVersion);
  add_number("own", own ? 1 : 0);
  add_number("step", own ? num_steps : steps_of_last);
  add_number("begun", own ? num_begun : begun_at_last);
  add_number("rounds", num_applied);
  add_number("rank", exchange->rank());
  add_number("ranks", exchange->size());
  for (const SharedTensor& one : tensors) {
    add("shared/" + one.name, one.shared);
    add("momentum/" + one.name, one.momentum);
    add("residual/" + one.name, one.residual);
  }
  if (!own) return state;
  check_good();
  for (std::size_t i = 0; i < fragments.size(); ++i)
    if (begun_after[i] >= 0) add_number(begun_name(i, fragments.size()), begun_after[i]);
  add_number("under way", static_cast<std::int64_t>(under_way.size()));
  for (std::size_t number = 0; number < under_way.size(); ++number) {
    const Round& round = under_way[number];
    round.wait();
    add_number(numbered(number, "fragment"), static_cast<std::int64_t>(round.fragment));
    add_number(numbered(number, "due"), round.due);
    const std::vector<std::size_t>& places = fragments[round.fragment];
    for (std::size_t i = 0; i < places.size(); ++i) {
      const std::string& name = tensors[places[i]].name;
      add(numbered(number, "mean/" + name), round.means[i]);
      add(numbered(number, "residual/" + name), round.residuals[i]);
      add(numbered(number, "handed in/" + name), round.handed_in[i]);
    }
  }
  return state;
}

void DiLoCo::Rounds::load_state_dict(const State& state) {
  const at::NoGradGuard no_grad;
  const Reader reader(state);
  Rounds loaded{.exchange = exchange,
                .inner = inner,
                .options = options,
                .tensors = tensors,
                .fragments = fragments,
                .begun_after = std::vector<std::int64_t>(fragments.size(), -1)};
  bool own = false;
  outer::check_agreement(*exchange, kLoad, [&]() -> outer::Settings {
    const std::int64_t saved_version = reader.number("version");
    check(saved_version == kVersion, kLoad, "a state of version 1", saved_version);
    own = reader.number("own") != 0;
    const bool is_own_rank =
        reader.number("rank") == exchange->rank() && reader.number("ranks") == exchange->size();
    check(is_own_rank || !own, kLoad,
          "the own state of rank " + std::to_string(exchange->rank()) + " of " +
              std::to_string(exchange->size()),
          "that of rank ", reader.number("rank"), " of ", reader.number("ranks"),
          "; state_dict() without own fits any");
    loaded.num_steps = loaded.steps_of_last = reader.number("step");
    loaded.num_begun = loaded.begun_at_last = reader.number("begun");
    loaded.num_applied = reader.number("rounds");
    std::size_t num_shared = 0;
    for (const auto& entry : state) num_shared += entry.key().starts_with("shared/") ? 1 : 0;
    check(num_shared == tensors.size(), kLoad,
          "a state of " + std::to_string(tensors.size()) + " tensors, as the model has",
          num_shared);
    const auto values_or = [&](const std::string& name, const at::Tensor& like, bool is_there) {
      if (!like.defined()) return at::Tensor();
      return is_there && reader.has(name) ? reader.values(name, like) : at::zeros_like(like);
    };
    for (SharedTensor& one : loaded.tensors) {
      one.shared = reader.values("shared/" + one.name, one.shared);
      one.momentum = values_or("momentum/" + one.name, one.momentum, true);
      one.residual = values_or("residual/" + one.name, one.residual, is_own_rank);
    }
    for (std::size_t i = 0; i < fragments.size(); ++i) {
      const std::string name = begun_name(i, fragments.size());
      if (!own) loaded.begun_after[i] = loaded.num_steps;  // the model takes up shared values
      if (own && reader.has(name)) loaded.begun_after[i] = reader.number(name);
    }
    const std::int64_t num_rounds = own ? reader.number("under way") : 0;
    check(num_rounds <= static_cast<std::int64_t>(fragments.size()), kLoad,
          "a state with rounds under way of as many fragments", num_rounds);
    for (std::size_t number = 0; number < static_cast<std::size_t>(num_rounds); ++number) {
      Round round;
      const std::int64_t fragment = reader.number(numbered(number, "fragment"));
      check(fragment < static_cast<std::int64_t>(fragments.size()), kLoad,
            "rounds under way of fragments that there are", fragment);
      round.fragment = static_cast<std::size_t>(fragment);
      round.due = reader.number(numbered(number, "due"));
      for (const std::size_t place : fragments[round.fragment]) {
        const SharedTensor& one = tensors[place];
        const auto optional = [&](const char* field, bool is_wanted) {
          const std::string name = numbered(number, field + ("/" + one.name));
          return is_wanted && reader.has(name) ? reader.values(name, one.shared) : at::Tensor();
        };
        round.means.push_back(reader.values(numbered(number, "mean/" + one.name), one.shared));
        round.handed_in.push_back(optional("handed in", true));
        round.residuals.push_back(optional("residual", one.residual.defined()));
        if (one.residual.defined() && !round.residuals.back().defined())
          round.residuals.back() = at::zeros_like(one.residual);
      }
      loaded.under_way.push_back(std::move(round));
    }
    return {{"own", std::to_string(own)},
            {"step", std::to_string(loaded.num_steps)},
            {"rounds", std::to_string(loaded.num_applied)},
            {"begun", std::to_string(loaded.num_begun)},
            {"weights", hash_of(loaded.tensors)}};
  });
  loaded.sent_bytes = sent_bytes;
  loaded.error = error;
  *this = std::move(loaded);
  if (own) return;
  for (const SharedTensor& one : tensors) one.take_up(at::Tensor());
}

}  // namespace slimgrad
