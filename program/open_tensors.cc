#include "program/open_tensors.h"

#include <algorithm>

#include "program/byte_files.h"
#include "program/near_names.h"
#include "program/npy.h"
#include "program/payload_files.h"
#include "program/safetensors.h"

namespace slimgrad::program {
namespace {

constexpr char kExpectedTypes[] = "expected F16, BF16, F32 or F64, got ";

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Adds the tensors of a .safetensors file, and to `there` all their names.
void open_safetensors(const std::string& path, const std::vector<std::string>& names,
                      OpenTensors& open, std::vector<std::string>& there) {
  const InputFile file(path);
  Safetensors parsed;
  try {
    parsed = parse_safetensors(file.bytes());
  } catch (const std::runtime_error& error) {
    throw FileError(path + ": " + error.what());
  }
  for (NamedTensor& tensor : parsed.tensors) {
    there.push_back(tensor.name);
    if (!names.empty() && !contains(names, tensor.name)) continue;
    if (!tensor.dtype || tensor.dtype == DType::kInt8) {
      if (!names.empty())
        throw FileError(path + ": tensor '" + tensor.name + "': " + kExpectedTypes + tensor.type);
      open.skipped.push_back({path, tensor.name, kExpectedTypes + tensor.type});
      continue;
    }
    const auto offset = static_cast<std::uint64_t>(tensor.bytes.data() - file.bytes().data());
    open.tensors.push_back({path, tensor.name, *tensor.dtype, std::move(tensor.shape), offset});
  }
}

[[noreturn]] void fail_for_name(const std::string& name, const std::vector<std::string>& there) {
  std::string text = "--tensor: there is no tensor '" + name + "'";
  const std::vector<std::string> near = near_names(name, there);
  for (std::size_t i = 0; i < near.size(); ++i)
    text += (i == 0 ? "; there is '" : ", '") + near[i] + '\'';
  if (near.empty() && !there.empty())
    text +=
        " among " + std::to_string(there.size()) + ", the first of which is '" + there[0] + '\'';
  throw UsageError(text);
}

}  // namespace

OpenTensors open_tensors(const std::vector<std::string>& paths,
                         const std::vector<std::string>& names, bool bfloat16) {
  OpenTensors open;
  std::vector<std::string> there;
  for (const std::string& path : paths) {
    if (ends_with(path, ".safetensors")) {
      open_safetensors(path, names, open, there);
    } else {
      if (!names.empty())
        throw UsageError("--tensor: expected .safetensors files, whose tensors have names, got '" +
                         path + "'");
      open.tensors.push_back(open_npy(path, bfloat16));
    }
  }
  for (const std::string& name : names)
    if (!contains(there, name)) fail_for_name(name, there);
  return open;
}

}  // namespace slimgrad::program
