// slimgrad-bench: Google Benchmark's program, but for SLIMGRAD_KERNELS, which the library obeys and
// kernels called by themselves do not.
#include <benchmark/benchmark.h>
#include <slimgrad/error.h>

#include <cstdio>

#include "kernel_choice.h"
#include "kernels/dispatch.h"

int main(int argc, char** argv) {
  try {
    slimgrad::kernels::select_kernel_set(slimgrad::chosen_kernel_set());
  } catch (const slimgrad::InvalidArgument& error) {
    std::fprintf(stderr, "slimgrad-bench: %s\n", error.what());
    return 2;
  }
  benchmark::AddCustomContext("kernels", slimgrad::chosen_kernel_set());
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
