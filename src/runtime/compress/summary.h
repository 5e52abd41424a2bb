// What Compression::summary() returns.
#ifndef SLIMGRAD_RUNTIME_COMPRESS_SUMMARY_H_
#define SLIMGRAD_RUNTIME_COMPRESS_SUMMARY_H_

#include <map>
#include <string>
#include <vector>

#include <slimgrad/gate_group.h>

namespace slimgrad::gating {

std::string summary_text(const std::vector<NamedReport>& reports,
                         const std::map<std::string, std::string>& left,
                         const std::vector<std::string>& warnings);

}  // namespace slimgrad::gating

#endif  // SLIMGRAD_RUNTIME_COMPRESS_SUMMARY_H_
