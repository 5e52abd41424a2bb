// The symbol coders beside zstd -1 on 8-bit gradient codes: generalized normal samples under a
// mid-tread quantizer, unpruned and with 85 % and 99 % zeros. Speeds are bytes of symbols a second;
// `size` is the coded size over the order-0 entropy of each block.
#include <benchmark/benchmark.h>
#include <zstd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "arrays/coding/symbol_block.h"
#include "kernels/coding/value_symbols.h"

namespace slimgrad {
namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kSymbols = 4 << 20;

// shape in hundredths, pruned share in percent
Bytes make_codes(std::int64_t shape, std::int64_t pruned) {
  std::mt19937_64 random(1);
  std::gamma_distribution<double> gamma(100.0 / static_cast<double>(shape), 1.0);
  std::vector<double> magnitudes(kSymbols);
  for (double& x : magnitudes) x = std::pow(gamma(random), 100.0 / static_cast<double>(shape));
  std::vector<double> sorted = magnitudes;
  std::sort(sorted.begin(), sorted.end());
  const double threshold = sorted[kSymbols / 100 * static_cast<std::size_t>(pruned)];
  Bytes codes(kSymbols);
  for (std::size_t i = 0; i < kSymbols; ++i) {
    const double x = pruned > 0 && magnitudes[i] < threshold ? 0.0 : magnitudes[i];
    const int level = static_cast<int>(std::lround(x / sorted.back() * 127));
    codes[i] = static_cast<std::uint8_t>(128 + (random() & 1 ? level : -level));
  }
  return codes;
}

// Kept, because an interleaved run comes back to each kind many times.
const Bytes& codes(const benchmark::State& state) {
  static std::map<std::pair<std::int64_t, std::int64_t>, Bytes> kept;
  Bytes& found = kept[{state.range(0), state.range(1)}];
  if (found.empty()) found = make_codes(state.range(0), state.range(1));
  return found;
}

std::vector<std::span<const std::uint8_t>> blocks_of(const Bytes& symbols) {
  std::vector<std::span<const std::uint8_t>> blocks;
  for (std::size_t i = 0; i < symbols.size(); i += kDefaultBlockSymbols)
    blocks.push_back(
        std::span(symbols).subspan(i, std::min(kDefaultBlockSymbols, symbols.size() - i)));
  return blocks;
}

void report(benchmark::State& state, const Bytes& symbols, std::size_t coded_bytes) {
  double entropy = 0.0;
  for (const auto block : blocks_of(symbols))
    entropy += entropy_bits(to_weights(kernels::count_bytes(block)));
  state.counters["entropy"] = entropy / static_cast<double>(symbols.size());
  state.counters["size"] = 8.0 * static_cast<double>(coded_bytes) / entropy;
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(symbols.size()));
}

template <EntropyCoder coder>
void encode(benchmark::State& state) {
  const Bytes& symbols = codes(state);
  const auto blocks = blocks_of(symbols);
  BlockEncoder encoder(coder);
  std::size_t size = 0;
  for (auto _ : state) {
    size = 0;
    for (const auto block : blocks) size += encoder.encode(block).size();
  }
  report(state, symbols, size);
}

template <EntropyCoder coder>
void decode(benchmark::State& state) {
  const Bytes& symbols = codes(state);
  BlockEncoder encoder(coder);
  std::vector<Bytes> coded;
  std::size_t size = 0;
  for (const auto block : blocks_of(symbols)) {
    const auto bytes = encoder.encode(block);
    coded.emplace_back(bytes.begin(), bytes.end());
    size += bytes.size();
  }
  Bytes back(symbols.size());
  BlockDecoder decoder;
  for (auto _ : state)
    for (std::size_t b = 0; b < coded.size(); ++b) {
      const std::size_t first = b * kDefaultBlockSymbols;
      const std::size_t n = std::min(kDefaultBlockSymbols, symbols.size() - first);
      if (decoder.decode(coded[b], std::span(back).subspan(first, n)) != DecodeStatus::kOk)
        state.SkipWithError("a block did not decode");
    }
  if (back != symbols) state.SkipWithError("decoded something else");
  report(state, symbols, size);
}

void zstd_encode(benchmark::State& state) {
  const Bytes& symbols = codes(state);
  Bytes out(ZSTD_compressBound(symbols.size()));
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  std::size_t size = 0;
  for (auto _ : state)
    size = ZSTD_compressCCtx(context, out.data(), out.size(), symbols.data(), symbols.size(), 1);
  ZSTD_freeCCtx(context);
  report(state, symbols, size);
}

void zstd_decode(benchmark::State& state) {
  const Bytes& symbols = codes(state);
  Bytes out(ZSTD_compressBound(symbols.size())), back(symbols.size());
  const std::size_t size = ZSTD_compress(out.data(), out.size(), symbols.data(), symbols.size(), 1);
  ZSTD_DCtx* const context = ZSTD_createDCtx();
  for (auto _ : state) ZSTD_decompressDCtx(context, back.data(), back.size(), out.data(), size);
  ZSTD_freeDCtx(context);
  report(state, symbols, size);
}

void kinds(benchmark::internal::Benchmark* b) {
  b->ArgNames({"shape", "pruned"});
  for (const std::int64_t shape : {40, 70, 100, 200}) b->Args({shape, 0});
  for (const std::int64_t pruned : {85, 99}) b->Args({60, pruned});
}

BENCHMARK(encode<EntropyCoder::kRans>)->Apply(kinds)->Name("encode_rans");
BENCHMARK(encode<EntropyCoder::kHuffman>)->Apply(kinds)->Name("encode_huffman");
BENCHMARK(zstd_encode)->Apply(kinds)->Name("encode_zstd1");
BENCHMARK(decode<EntropyCoder::kRans>)->Apply(kinds)->Name("decode_rans");
BENCHMARK(decode<EntropyCoder::kHuffman>)->Apply(kinds)->Name("decode_huffman");
BENCHMARK(zstd_decode)->Apply(kinds)->Name("decode_zstd1");

}  // namespace
}  // namespace slimgrad
