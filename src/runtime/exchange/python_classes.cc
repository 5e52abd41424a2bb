// Exchange and PendingExchange as classes of torch, which is how Python holds them; and codecs as
// named values. Methods run without Python's lock.
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <cmath>

#include <slimgrad/exchange.h>
#include <slimgrad/tensor_coder.h>

#include "base/check.h"
#include "runtime/exchange/codec_values.h"
#include "runtime/exchange/engine.h"
#include "runtime/exchange/frame_coding.h"
#include "runtime/exchange/python_errors.h"
#include "torch/checks.h"
#include "torch/elements.h"

namespace slimgrad {
namespace {

using TensorVector = Exchange::Tensors;
using exchange::codec_of;
using exchange::in_python;
using exchange::NamedValues;

// ---- codecs
// --------------------------------------------------------------------------------------

[[noreturn]] void refuse(const char* name, const char* expected, const c10::IValue& value) {
  std::ostringstream got;
  got << value;
  throw_invalid("Codec", std::string(name) + " to be " + expected, got.str());
}

void read(const char* name, const c10::IValue& value, bool& out) {
  if (!value.isBool()) refuse(name, "True or False", value);
  out = value.toBool();
}
void read(const char* name, const c10::IValue& value, std::int64_t& out) {
  if (!value.isInt()) refuse(name, "a whole number", value);
  out = value.toInt();
}
void read(const char* name, const c10::IValue& value, int& out) {
  if (!value.isInt()) refuse(name, "a whole number", value);
  // What is out of range stays out of range, for check() to refuse.
  out = static_cast<int>(std::clamp<std::int64_t>(value.toInt(), -1, 1 << 30));
}
void read(const char* name, const c10::IValue& value, double& out) {
  if (!value.isDouble() && !value.isInt()) refuse(name, "a number", value);
  out = value.isDouble() ? value.toDouble() : static_cast<double>(value.toInt());
}
const std::string& text_of(const char* name, const c10::IValue& value) {
  if (!value.isString()) refuse(name, "a name", value);
  return value.toStringRef();
}
// parse(), whose error names the setting of a codec instead of an argument of encode().
template <typename Parse>
auto named(const char* name, const c10::IValue& value, const Parse& parse) {
  try {
    return parse(text_of(name, value));
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    const std::size_t choices = text.find(" to be one of ");
    if (choices == std::string::npos) throw;
    throw InvalidArgument("[Codec] expected " + std::string(name) + text.substr(choices));
  }
}
void read(const char* name, const c10::IValue& value, PayloadKind& out) {
  out = named(name, value, parse_payload_kind);
}
void read(const char* name, const c10::IValue& value, EntropyCoder& out) {
  out = named(name, value, parse_entropy_coder);
}
void read(const char* name, const c10::IValue& value, TableModel& out) {
  out = named(name, value, parse_table_model);
}
void read(const char* name, const c10::IValue& value, Survivors& out) {
  out = named(name, value, parse_survivors);
}
void read(const char* name, const c10::IValue& value, FloatFormat& out) {
  out = FloatFormat::parse(text_of(name, value));
}
void read(const char* name, const c10::IValue& value, std::optional<Rounding>& out) {
  if (!value.isNone()) out = named(name, value, parse_rounding);
}

c10::IValue written(bool value) { return value; }
c10::IValue written(int value) { return static_cast<std::int64_t>(value); }
c10::IValue written(std::int64_t value) { return value; }
c10::IValue written(double value) { return value; }
c10::IValue written(PayloadKind value) { return std::string(payload_kind_name(value)); }
c10::IValue written(EntropyCoder value) { return std::string(entropy_coder_name(value)); }
c10::IValue written(TableModel value) { return std::string(table_model_name(value)); }
c10::IValue written(Survivors value) { return std::string(survivors_name(value)); }
c10::IValue written(const FloatFormat& value) { return value.name(); }
c10::IValue written(const std::optional<Rounding>& value) {
  return value ? c10::IValue(std::string(rounding_name(*value))) : c10::IValue();
}

}  // namespace

Codec exchange::codec_of(const NamedValues& settings) {
  Codec codec;
  std::size_t known = 0;
  const auto read_setting = [&](const char* name, auto& value) {
    const auto found = settings.find(name);
    if (found == settings.end()) return;
    ++known;
    // None is the kind's own default.
    if (name == std::string_view("error_feedback") && found->value().isNone())
      codec.error_feedback = Codec::feeds_back_by_default(codec.kind);
    else
      read(name, found->value(), value);
  };
  Codec::visit(codec, read_setting);  // the kind first
  check(known == settings.size(), "Codec", "settings of a codec", "one that it has not");
  codec.check();
  return codec;
}

namespace {

NamedValues settings_of(const Codec& codec) {
  auto settings = c10::impl::toTypedDict<std::string, c10::IValue>(
      c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get()));
  Codec::visit(codec,
               [&](const char* name, const auto& value) { settings.insert(name, written(value)); });
  return settings;
}

ExchangeOptions options_of(std::optional<std::int64_t> step, double divide_by,
                           const std::vector<std::int64_t>& keys) {
  return {.step = step, .divide_by = divide_by, .keys = keys};
}

TensorVector defined_or_not(const std::vector<std::optional<at::Tensor>>& tensors) {
  TensorVector found;
  for (const auto& tensor : tensors) found.push_back(tensor.value_or(at::Tensor()));
  return found;
}

// ---- classes
// -------------------------------------------------------------------------------------

struct PendingObject : torch::CustomClassHolder {
  explicit PendingObject(std::shared_ptr<PendingExchange> started) : pending(std::move(started)) {}

  bool wait_for(double seconds) const {
    const auto time =
        std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(1e3 * seconds)));
    return in_python([&] { return pending->wait_for(time); });
  }
  bool is_complete() const { return pending->is_complete(); }
  std::int64_t sent_bytes() const { return pending->sent_bytes(); }

  std::shared_ptr<PendingExchange> pending;
};
using Pending = c10::intrusive_ptr<PendingObject>;

struct ExchangeObject : torch::CustomClassHolder {
  ExchangeObject(const std::string& group_name, const std::vector<std::int64_t>& global_ranks)
      : exchange(in_python([&] {
          return Exchange::of(c10d::resolve_process_group(group_name),
                              {global_ranks.begin(), global_ranks.end()});
        })) {}

  template <typename Call>
  Pending start(const Call& call) const {
    return in_python([&] { return c10::make_intrusive<PendingObject>(call()); });
  }
  Pending all_reduce(const TensorVector& tensors, const NamedValues& codec,
                     std::optional<std::int64_t> step, double divide_by,
                     const std::vector<std::int64_t>& keys,
                     const std::vector<std::optional<at::Tensor>>& residuals) const {
    return start([&] {
      return exchange->all_reduce(tensors, codec_of(codec), options_of(step, divide_by, keys),
                                  defined_or_not(residuals));
    });
  }
  Pending reduce_scatter(
      const TensorVector& outputs, const std::vector<TensorVector>& inputs,
      const NamedValues& codec, std::optional<std::int64_t> step, double divide_by,
      const std::vector<std::int64_t>& keys,
      const std::vector<std::vector<std::optional<at::Tensor>>>& residuals) const {
    return start([&] {
      std::vector<TensorVector> found;
      for (const auto& list : residuals) found.push_back(defined_or_not(list));
      return exchange->reduce_scatter(outputs, inputs, codec_of(codec),
                                      options_of(step, divide_by, keys), found);
    });
  }
  Pending all_gather(const std::vector<TensorVector>& outputs, const TensorVector& tensors,
                     const NamedValues& codec, std::optional<std::int64_t> step) const {
    return start([&] {
      return exchange->all_gather(outputs, tensors, codec_of(codec), options_of(step, 1, {}));
    });
  }
  Pending broadcast(const TensorVector& tensors, const NamedValues& codec, std::int64_t source,
                    std::optional<std::int64_t> step) const {
    return start([&] {
      return exchange->broadcast(tensors, codec_of(codec), static_cast<int>(source),
                                 options_of(step, 1, {}));
    });
  }

  // The seed of what a rank codes, for the tests of draws.
  static std::int64_t seed(std::int64_t codec_seed, const std::string& op, const std::string& group,
                           const std::string& counted, std::int64_t count, std::int64_t rank,
                           std::int64_t stage, std::int64_t reader) {
    const std::uint64_t seed =
        exchange::exchange_seed(codec_seed, op, group, counted, static_cast<std::uint64_t>(count));
    return static_cast<std::int64_t>(exchange::message_seed(
        seed, static_cast<int>(rank), static_cast<int>(stage), static_cast<int>(reader)));
  }

  std::shared_ptr<Exchange> exchange;
};

// Codecs, for Python's Codec: names, settings of a name, the name of settings, which are checked.
struct CodecObject : torch::CustomClassHolder {
  explicit CodecObject(const NamedValues& settings)
      : codec(in_python([&] { return codec_of(settings); })) {}

  static std::vector<std::string> names() { return Codec::names(); }
  static NamedValues parse(const std::string& name) {
    return in_python([&] { return settings_of(Codec::parse(name)); });
  }
  std::string name() const { return codec.name(); }
  bool sends_to_all() const { return codec.sends_to_all(); }
  NamedValues settings() const {
    Codec in_force = codec;
    in_force.rounding = codec.rounding_in_force();
    return settings_of(in_force);
  }

  // TensorVector cut into frames, and frames coded, as an exchange does it: for estimates and
  // tests.
  std::vector<TensorVector> frames(const TensorVector& tensors) const {
    exchange::FlatTensors flat{tensors, std::vector<std::int64_t>(tensors.size(), 0), {}};
    std::vector<TensorVector> found;
    for (const exchange::Frame& frame :
         exchange::frames_between(flat, {}, {tensors.size(), 0}, codec)) {
      found.emplace_back();
      for (const exchange::Piece& piece : frame) found.back().push_back(piece.values);
    }
    return found;
  }
  exchange::Frame frame_of(const TensorVector& pieces,
                           const std::vector<std::int64_t>& keys) const {
    check(keys.size() == pieces.size(), "Codec", "a key for every piece", keys.size(), " for ",
          pieces.size());
    exchange::Frame frame;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      check(pieces[i].dim() == 1 && pieces[i].is_contiguous() && pieces[i].device().is_cpu() &&
                torch_ops::is_float_dtype(pieces[i].scalar_type()) &&
                pieces[i].scalar_type() == pieces[0].scalar_type(),
            "Codec", "contiguous pieces of one dimension and one type on the CPU", "others");
      frame.push_back({pieces[i], pieces[i].numel() < codec.min_elements,
                       static_cast<std::uint64_t>(keys[i]), at::Tensor()});
    }
    return frame;
  }
  exchange::Frame frame_of(const TensorVector& pieces) const {
    return frame_of(pieces, std::vector<std::int64_t>(pieces.size(), 0));
  }
  std::int64_t frame_bound(const TensorVector& pieces) const {
    return in_python([&] {
      return static_cast<std::int64_t>(exchange::frame_bound(frame_of(pieces), type_of(pieces)));
    });
  }
  at::Tensor encode_frame(const TensorVector& pieces, const std::vector<std::int64_t>& keys,
                          std::int64_t seed, bool replace, const at::Tensor& out) const {
    return in_python([&] {
      check_bytes(out);
      const std::size_t size =
          exchange::encode_frame(frame_of(pieces, keys), codec, static_cast<std::uint64_t>(seed),
                                 replace, torch_ops::mutable_elements<std::uint8_t>(out));
      return out.narrow(0, 0, static_cast<std::int64_t>(size));
    });
  }
  // Into `to`, or added to it, which is float32 then. `like` has the type and sizes that were
  // coded.
  void decode_frame(const at::Tensor& bytes, const TensorVector& like, const TensorVector& to,
                    bool add) const {
    in_python([&] {
      check_bytes(bytes);
      const at::ScalarType type = type_of(like);
      check(to.size() == like.size(), "Codec", "a tensor for each piece", to.size(), " for ",
            like.size());
      for (std::size_t i = 0; i < to.size(); ++i)
        check(to[i].is_contiguous() && to[i].device().is_cpu() &&
                  to[i].numel() == like[i].numel() &&
                  to[i].scalar_type() == (add ? at::kFloat : type),
              "Codec", add ? "sums of type float32" : "tensors of the pieces' type and size",
              c10::toString(to[i].scalar_type()), " of ", to[i].numel());
      exchange::decode_frame(torch_ops::elements<std::uint8_t>(bytes), frame_of(like), codec, type,
                             to, add);
    });
  }
  static at::ScalarType type_of(const TensorVector& pieces) {
    return pieces.empty() ? at::kFloat : pieces[0].scalar_type();
  }
  static void check_bytes(const at::Tensor& bytes) {
    check(bytes.scalar_type() == at::kByte && bytes.is_contiguous() && bytes.device().is_cpu(),
          "Codec", "bytes as a contiguous uint8 tensor", c10::toString(bytes.scalar_type()));
  }

  Codec codec;
};

// For Codec.encode and Codec.decode of Python.
struct TensorCoderObject : torch::CustomClassHolder {
  explicit TensorCoderObject(const NamedValues& settings)
      : coder(in_python([&] { return TensorCoder(codec_of(settings)); })) {}

  at::Tensor encode(const TensorVector& tensors) {
    return in_python([&] { return coder.encode(tensors); });
  }
  TensorVector decode(const at::Tensor& bytes, const TensorVector& like) const {
    return in_python([&] { return coder.decode(bytes, like); });
  }
  std::int64_t num_calls() const { return coder.num_calls(); }
  TensorVector residuals() const { return coder.residuals(); }
  void load_state(std::int64_t num_calls, const TensorVector& residuals) {
    in_python([&] { coder.load_state(num_calls, residuals); });
  }

  TensorCoder coder;
};

TORCH_LIBRARY_FRAGMENT(slimgrad, m) {
  m.class_<TensorCoderObject>("TensorCoder")
      .def(torch::init<const NamedValues&>())
      .def("encode", &TensorCoderObject::encode)
      .def("decode", &TensorCoderObject::decode)
      .def("num_calls", &TensorCoderObject::num_calls)
      .def("residuals", &TensorCoderObject::residuals)
      .def("load_state", &TensorCoderObject::load_state);
  m.class_<CodecObject>("Codec")
      .def(torch::init<const NamedValues&>())
      .def_static("names", &CodecObject::names)
      .def_static("parse", &CodecObject::parse)
      .def("name", &CodecObject::name)
      .def("sends_to_all", &CodecObject::sends_to_all)
      .def("settings", &CodecObject::settings)
      .def("frames", &CodecObject::frames)
      .def("encode_frame", &CodecObject::encode_frame)
      .def("decode_frame", &CodecObject::decode_frame)
      .def("frame_bound", &CodecObject::frame_bound);
  m.class_<PendingObject>("PendingExchange")
      .def("wait_for", &PendingObject::wait_for)
      .def("is_complete", &PendingObject::is_complete)
      .def("sent_bytes", &PendingObject::sent_bytes);
  m.class_<ExchangeObject>("Exchange")
      .def(torch::init<const std::string&, const std::vector<std::int64_t>&>())
      .def_static("seed", &ExchangeObject::seed)
      .def("all_reduce", &ExchangeObject::all_reduce)
      .def("reduce_scatter", &ExchangeObject::reduce_scatter)
      .def("all_gather", &ExchangeObject::all_gather)
      .def("broadcast", &ExchangeObject::broadcast);
}

}  // namespace
}  // namespace slimgrad
