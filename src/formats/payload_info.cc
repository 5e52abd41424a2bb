#include <slimgrad/payload_info.h>

#include "base/names.h"

namespace slimgrad {
namespace {

constexpr NameTable<DType, 5> kDTypes = {{{DType::kFloat32, "float32"},
                                          {DType::kBFloat16, "bfloat16"},
                                          {DType::kFloat16, "float16"},
                                          {DType::kFloat64, "float64"},
                                          {DType::kInt8, "int8"}}};
constexpr NameTable<PayloadKind, 5> kKinds = {{{PayloadKind::kLossless, "lossless"},
                                               {PayloadKind::kUniform, "uniform"},
                                               {PayloadKind::kFloat, "float"},
                                               {PayloadKind::kPruned, "pruned"},
                                               {PayloadKind::kTopk, "topk"}}};
constexpr NameTable<TableModel, 4> kModels = {{{TableModel::kCounted, "counted"},
                                               {TableModel::kNormal, "normal"},
                                               {TableModel::kLaplace, "laplace"},
                                               {TableModel::kGennorm, "gennorm"}}};
constexpr NameTable<Survivors, 3> kSurvivors = {{{Survivors::kExact, "exact"},
                                                 {Survivors::kBFloat16, "bfloat16"},
                                                 {Survivors::kFloat, "float"}}};

}  // namespace

std::string_view dtype_name(DType dtype) { return name_of(kDTypes, dtype); }
std::string_view payload_kind_name(PayloadKind kind) {
  return kind == PayloadKind::kRaw ? "raw" : name_of(kKinds, kind);
}
std::string_view table_model_name(TableModel model) { return name_of(kModels, model); }
std::string_view survivors_name(Survivors survivors) { return name_of(kSurvivors, survivors); }

PayloadKind parse_payload_kind(std::string_view name) {
  return parse_name(kKinds, "encode", "mode", name);
}
TableModel parse_table_model(std::string_view name) {
  return parse_name(kModels, "encode", "model", name);
}
Survivors parse_survivors(std::string_view name) {
  return parse_name(kSurvivors, "encode", "survivors", name);
}

}  // namespace slimgrad
