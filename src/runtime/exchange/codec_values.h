// Codecs as Python hands them over: settings by name.
#ifndef SLIMGRAD_RUNTIME_EXCHANGE_CODEC_VALUES_H_
#define SLIMGRAD_RUNTIME_EXCHANGE_CODEC_VALUES_H_

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>

#include <string>

#include <slimgrad/codec.h>

namespace slimgrad::exchange {

using NamedValues = c10::Dict<std::string, c10::IValue>;

// What is not there has its default. Throws InvalidArgument.
Codec codec_of(const NamedValues& settings);

}  // namespace slimgrad::exchange

#endif  // SLIMGRAD_RUNTIME_EXCHANGE_CODEC_VALUES_H_
