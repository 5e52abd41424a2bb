// The types of .safetensors files, in their words.
#ifndef SLIMGRAD_TORCH_CODING_FILE_TYPES_H_
#define SLIMGRAD_TORCH_CODING_FILE_TYPES_H_

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/check.h"

namespace slimgrad::torch_ops {

struct FileType {
  const char* name;
  at::ScalarType type;
};
inline constexpr std::array kFileTypes = {
    FileType{"F32", at::kFloat},
    FileType{"BF16", at::kBFloat16},
    FileType{"F16", at::kHalf},
    FileType{"F64", at::kDouble},
    FileType{"I8", at::kChar},
    FileType{"BOOL", at::kBool},
    FileType{"U8", at::kByte},
    FileType{"I16", at::kShort},
    FileType{"I32", at::kInt},
    FileType{"I64", at::kLong},
    FileType{"U16", at::kUInt16},
    FileType{"U32", at::kUInt32},
    FileType{"U64", at::kUInt64},
    FileType{"C64", at::kComplexFloat},
    FileType{"F8_E4M3", at::kFloat8_e4m3fn},
    FileType{"F8_E5M2", at::kFloat8_e5m2},
    FileType{"F8_E8M0", at::kFloat8_e8m0fnu},
};

// Throws InvalidArgument, in the name of `op`, for a type that has no name.
inline const char* file_type_name(at::ScalarType type, std::string_view op) {
  const auto* const found = std::ranges::find(kFileTypes, type, &FileType::type);
  check(found != kFileTypes.end(), op, "a type that .safetensors has",
        c10::getDtypeNames(type).first);
  return found->name;
}

// Nothing for a name that torch has no type for.
inline std::optional<at::ScalarType> file_type(std::string_view name) {
  for (const FileType& known : kFileTypes)
    if (known.name == name) return known.type;
  return std::nullopt;
}

}  // namespace slimgrad::torch_ops

#endif  // SLIMGRAD_TORCH_CODING_FILE_TYPES_H_
