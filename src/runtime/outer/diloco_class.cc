// torch.classes.slimgrad.DiLoCo: a DiLoCo as Python holds it. Python takes the inner step, and
// waits in pieces, so that Ctrl-C ends it.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <cmath>

#include <slimgrad/diloco.h>

#include "base/check.h"
#include "runtime/exchange/codec_values.h"
#include "runtime/exchange/python_errors.h"
#include "runtime/outer/agreement.h"

namespace slimgrad {
namespace {

using exchange::in_python;
using Names = std::vector<std::string>;

std::shared_ptr<Exchange> exchange_named(const std::string& group,
                                         const std::vector<std::int64_t>& global_ranks) {
  return Exchange::of(c10d::resolve_process_group(group),
                      {global_ranks.begin(), global_ranks.end()});
}

DiLoCoTensors::Named named(const Names& names, const Exchange::Tensors& tensors) {
  check(names.size() == tensors.size(), "DiLoCo", "a name for each tensor", names.size(), " for ",
        tensors.size());
  DiLoCoTensors::Named named;
  for (std::size_t i = 0; i < names.size(); ++i) named.emplace_back(names[i], tensors[i]);
  return named;
}

struct DiLoCoObject : torch::CustomClassHolder {
  DiLoCoObject(const std::string& group, const std::vector<std::int64_t>& global_ranks,
               const Names& parameter_names, const Exchange::Tensors& parameters,
               const Names& buffer_names, const Exchange::Tensors& buffers,
               const exchange::NamedValues& codec, std::int64_t every, std::int64_t fragments,
               std::int64_t overlap, double feedback, double lr, double momentum, bool nesterov)
      : diloco(in_python([&] {
          const DiLoCoOptions options = {.outer = {lr, momentum, nesterov},
                                         .every = every,
                                         .codec = exchange::codec_of(codec),
                                         .fragments = fragments,
                                         .overlap = overlap,
                                         .feedback = feedback};
          return std::make_unique<DiLoCo>(
              exchange_named(group, global_ranks),
              DiLoCoTensors{named(parameter_names, parameters), named(buffer_names, buffers)},
              nullptr, options);
        })) {}

  // For a rank whose arguments were refused before there was an object: the others, which make one,
  // are told.
  static void refuse(const std::string& group, const std::vector<std::int64_t>& global_ranks,
                     const std::string& text) {
    in_python([&] {
      try {
        outer::check_agreement(*exchange_named(group, global_ranks), "DiLoCo",
                               [&]() -> outer::Settings { throw InvalidArgument(text); });
      } catch (const InvalidArgument&) {  // the caller knows
      }
    });
  }

  void begin_step() {
    in_python([&] { diloco->begin_step(); });
  }
  void begin_last() {
    in_python([&] { diloco->begin_last(); });
  }
  void begin_all() {
    in_python([&] { diloco->begin_all(); });
  }
  bool wait_for(double seconds) {
    const auto time =
        std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(1e3 * seconds)));
    return in_python([&] { return diloco->wait_for(time); });
  }
  bool end_step() {
    return in_python([&] { return diloco->end_step(); });
  }
  DiLoCo::State state_dict(bool own) const {
    return in_python([&] { return diloco->state_dict(own); });
  }
  void load_state_dict(const DiLoCo::State& state) {
    in_python([&] { diloco->load_state_dict(state); });
  }
  std::int64_t num_steps() const { return diloco->num_steps(); }
  std::int64_t num_rounds() const { return diloco->num_rounds(); }
  std::int64_t sent_bytes() const { return diloco->sent_bytes(); }

  std::unique_ptr<DiLoCo> diloco;
};

TORCH_LIBRARY_FRAGMENT(slimgrad, m) {
  m.class_<DiLoCoObject>("DiLoCo")
      .def(torch::init<const std::string&, const std::vector<std::int64_t>&, const Names&,
                       const Exchange::Tensors&, const Names&, const Exchange::Tensors&,
                       const exchange::NamedValues&, std::int64_t, std::int64_t, std::int64_t,
                       double, double, double, bool>())
      .def_static("refuse", &DiLoCoObject::refuse)
      .def("begin_step", &DiLoCoObject::begin_step)
      .def("begin_last", &DiLoCoObject::begin_last)
      .def("begin_all", &DiLoCoObject::begin_all)
      .def("wait_for", &DiLoCoObject::wait_for)
      .def("end_step", &DiLoCoObject::end_step)
      .def("state_dict", &DiLoCoObject::state_dict)
      .def("load_state_dict", &DiLoCoObject::load_state_dict)
      .def("num_steps", &DiLoCoObject::num_steps)
      .def("num_rounds", &DiLoCoObject::num_rounds)
      .def("sent_bytes", &DiLoCoObject::sent_bytes);
}

}  // namespace
}  // namespace slimgrad
