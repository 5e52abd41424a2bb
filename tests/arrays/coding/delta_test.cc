#include <slimgrad/delta.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arrays/coding/checksum.h"
#include "formats/delta_values.h"
#include "kernels/dispatch.h"

namespace slimgrad {
namespace {

using Bytes = std::vector<std::uint8_t>;

struct Pair {
  std::string type;
  std::size_t width;
  Bytes base, changed;

  DeltaTensor view(const Bytes& bytes) const { return {"", type, {bytes.size() / width}, bytes}; }
  Bytes payload(const Parallel& parallel = {}) const {
    return delta(view(base), view(changed), parallel);
  }
};

std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Weights before and after a step of about `step`, rounded to bfloat16.
Pair bfloat16_step(std::size_t num_values, float step, unsigned seed = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> weight(0, 0.05f), move(0, step);
  Pair pair = {"BF16", 2, Bytes(2 * num_values), Bytes(2 * num_values)};
  for (std::size_t i = 0; i < num_values; ++i) {
    const float w = weight(random);
    const std::uint16_t before = to_bfloat16(w), after = to_bfloat16(w + move(random));
    std::memcpy(pair.base.data() + 2 * i, &before, 2);
    std::memcpy(pair.changed.data() + 2 * i, &after, 2);
  }
  return pair;
}

// Random bits, NaN and -0 among them, of which a share changes: to anything, or by one unit.
Pair random_bits(const delta_format::ValueType& type, std::size_t num_values, double share,
                 unsigned seed) {
  std::mt19937_64 random(seed);
  Pair pair = {std::string(type.name), type.width, Bytes(type.width * num_values), {}};
  for (std::uint8_t& byte : pair.base) byte = static_cast<std::uint8_t>(random());
  for (std::size_t i = 0; i < num_values; i += 7)
    std::memset(pair.base.data() + i * type.width, 0, type.width);
  for (std::size_t i = 3; i < num_values; i += 11)  // -0 of a float
    pair.base[(i + 1) * type.width - 1] = 0x80;
  pair.changed = pair.base;
  std::bernoulli_distribution changes(share);
  for (std::size_t i = 0; i < num_values; ++i) {
    if (!changes(random)) continue;
    std::uint8_t* const value = pair.changed.data() + i * type.width;
    if (random() % 4 == 0)
      for (std::size_t b = 0; b < type.width; ++b) value[b] = static_cast<std::uint8_t>(random());
    else
      value[0] = static_cast<std::uint8_t>(value[0] + (random() % 2 == 0 ? 1 : -1));
  }
  return pair;
}

// The least that a code by exponent of the base needs: written down anew, with floats and maps.
double entropy_by_exponent(const Pair& pair) {
  std::map<int, std::map<long, double>> counts;
  for (std::size_t i = 0; i < pair.base.size() / 2; ++i) {
    std::uint16_t from, to;
    std::memcpy(&from, pair.base.data() + 2 * i, 2);
    std::memcpy(&to, pair.changed.data() + 2 * i, 2);
    const auto place = [](std::uint16_t bits) {
      return bits < 0x8000 ? long{bits} : -1 - long{bits & 0x7fff};
    };
    ++counts[from >> 7 & 255][place(to) - place(from)];
  }
  double bits = 0;
  for (const auto& [exponent, of_exponent] : counts) {
    double sum = 0;
    for (const auto& [difference, count] : of_exponent) sum += count;
    for (const auto& [difference, count] : of_exponent) bits -= count * std::log2(count / sum);
  }
  return bits;
}

TEST(Delta, EveryTypeComesBackBitForBit) {
  for (const delta_format::ValueType& type : delta_format::kValueTypes)
    for (const std::size_t num_values : {0, 1, 63, 64, 65, 5000, 300000})
      for (const double share : {0.0, 0.003, 0.05, 0.9}) {
        const Pair pair = random_bits(type, num_values, share, 7);
        const Bytes payload = pair.payload();
        EXPECT_EQ(apply_delta(pair.base, payload), pair.changed) << type.name << ' ' << num_values;
        Bytes in_place = pair.base;
        apply_delta(in_place, payload, in_place);
        EXPECT_EQ(in_place, pair.changed) << type.name << ' ' << num_values << " in place";
      }
}

// A table's first symbol leaves a coder at 0, so the last lane, of one value, has nothing to say.
TEST(Delta, ALaneOfFirstSymbolsComesBack) {
  for (const delta_format::ValueType& type : delta_format::kValueTypes) {
    const std::size_t num_values = delta_format::kLaneValues + 1;
    Pair pair = {std::string(type.name), type.width, Bytes(type.width * num_values), {}};
    pair.changed = pair.base;
    for (std::size_t i = 0; i < num_values; ++i)
      pair.changed[i * type.width] = static_cast<std::uint8_t>(1 + i % 2);
    const Bytes payload = pair.payload();
    EXPECT_EQ(apply_delta(pair.base, payload), pair.changed) << type.name;
    Bytes in_place = pair.base;
    apply_delta(in_place, payload, in_place);
    EXPECT_EQ(in_place, pair.changed) << type.name << " in place";
  }
}

// Of a million weights with few changes the header, tables, hashes and ends of streams show.
TEST(Delta, IsCloseToTheEntropyByExponent) {
  const auto over_entropy = [](std::size_t num_values, float step) {
    const Pair pair = bfloat16_step(num_values, step);
    return 8.0 * static_cast<double>(pair.payload().size()) / entropy_by_exponent(pair);
  };
  for (const float step : {2e-6f, 2e-5f, 6e-4f})
    EXPECT_LT(over_entropy(std::size_t{1} << 20, step), 1.05) << step;
  EXPECT_LT(over_entropy(std::size_t{1} << 20, 6e-7f), 1.06);
  EXPECT_LT(over_entropy(std::size_t{5} << 20, 6e-7f), 1.05);  // sampled twice
}

TEST(Delta, IsTheSameForEveryKernelSetAndNumberOfThreads) {
  const Parallel threads = [](std::int64_t count, const std::function<void(std::int64_t)>& task) {
    std::vector<std::jthread> running;
    for (std::int64_t i = count; i-- > 0;) running.emplace_back([&task, i] { task(i); });
  };
  for (const float step : {1e-6f, 3e-5f}) {
    const Pair pair = bfloat16_step(700001, step);
    const Bytes payload = pair.payload();
    EXPECT_EQ(pair.payload(threads), payload);
    for (const std::string& set : kernels::kernel_sets()) {
      kernels::select_kernel_set(set);
      EXPECT_EQ(pair.payload(), payload) << set;
      EXPECT_EQ(apply_delta(pair.base, payload, threads), pair.changed) << set;
    }
    kernels::select_kernel_set("best");
  }
}

// Enough blocks that they are decoded two at a time, with one left over, and a lane that is short.
TEST(Delta, BlocksThatAreDecodedTogetherComeBack) {
  using namespace delta_format;
  for (const char* const name : {"BF16", "F32", "I64", "U8"})
    for (const double share : {0.002, 0.6}) {
      const ValueType& type = kValueTypes[type_code(name)];
      Pair pair = random_bits(type, 8 * kBlockValues + kLaneValues + 77, share, 5);
      // A block without a change, and a lane.
      const std::size_t block = kBlockValues * type.width;
      std::copy_n(pair.base.begin(), block + block / 2, pair.changed.begin());
      Bytes payload = pair.payload();
      for (const std::string& set : kernels::kernel_sets()) {
        kernels::select_kernel_set(set);
        EXPECT_EQ(pair.payload(), payload) << name << ' ' << set;
        EXPECT_EQ(apply_delta(pair.base, payload), pair.changed) << name << ' ' << set;
        Bytes in_place = pair.base;
        apply_delta(in_place, payload, in_place);
        EXPECT_EQ(in_place, pair.changed) << name << ' ' << set << " in place";
      }
      kernels::select_kernel_set("best");
      payload[payload.size() - 20] ^= 0x10;  // in the last block
      const std::uint64_t sum = checksum(std::span(payload).first(payload.size() - 8));
      std::memcpy(payload.data() + payload.size() - 8, &sum, 8);
      Bytes in_place = pair.base;
      EXPECT_THROW(apply_delta(in_place, payload, in_place), PayloadError) << name;
      EXPECT_EQ(in_place, pair.base) << name;
    }
}

TEST(Delta, AnUnchangedTensorTakesAHeader) {
  const Pair pair = bfloat16_step(1000000, 0);
  EXPECT_LT(pair.payload().size(), 64u);
  EXPECT_EQ(apply_delta(pair.base, pair.payload()), pair.changed);
}

TEST(Delta, ATensorWithAZeroInItsShapeIsEmpty) {
  const DeltaTensor empty = {"", "F32", {1ull << 62, 1ull << 62, 0}, {}};
  const Bytes payload = delta(empty, empty);
  EXPECT_EQ(inspect_delta(payload).num_bytes(), 0u);
  EXPECT_TRUE(apply_delta({}, payload).empty());
}

TEST(Delta, AWrongBaseIsRefusedBeforeAnythingIsWritten) {
  const Pair pair = bfloat16_step(600000, 1e-6f);
  const Bytes payload = pair.payload();
  Bytes other = pair.base;
  other[599999] ^= 1;
  const Bytes before = other;
  EXPECT_THROW(apply_delta(other, payload, other), WrongBase);
  EXPECT_EQ(other, before);
  Bytes out(other.size(), 0x55);
  EXPECT_THROW(apply_delta(other, payload, out), WrongBase);
  EXPECT_EQ(out, Bytes(other.size(), 0x55));
  EXPECT_THROW(apply_delta(other, payload), WrongBase);
  other.resize(other.size() - 2);
  EXPECT_THROW(apply_delta(other, payload), WrongBase);
}

TEST(Delta, EveryCutAndFlipIsFound) {
  const Pair pair = bfloat16_step(20000, 1e-5f);
  const Bytes payload = pair.payload();
  for (std::size_t size = 0; size < payload.size(); ++size)
    EXPECT_THROW(apply_delta(pair.base, std::span(payload).first(size)), PayloadError) << size;
  for (std::size_t i = 0; i < payload.size(); ++i) {
    Bytes flipped = payload;
    flipped[i] ^= static_cast<std::uint8_t>(1 << i % 8);
    EXPECT_THROW(apply_delta(pair.base, flipped), PayloadError) << i;
  }
}

// Behind a right checksum every other byte is damaged in turn: an error, and the base as it was.
TEST(Delta, DamageBehindTheChecksumIsUndone) {
  for (const Pair& pair : {bfloat16_step(20000, 1e-5f), bfloat16_step(3000, 1e-3f)}) {
    const Bytes payload = pair.payload();
    std::size_t num_harmless = 0;
    for (std::size_t i = 0; i + 8 < payload.size(); ++i) {
      Bytes damaged = payload;
      damaged[i] ^= 0x10;
      const std::uint64_t sum = checksum(std::span(damaged).first(damaged.size() - 8));
      std::memcpy(damaged.data() + damaged.size() - 8, &sum, 8);
      Bytes in_place = pair.base;
      try {
        apply_delta(in_place, damaged, in_place);
        // A hazard of a class that has no values: the result is proven all the same.
        EXPECT_EQ(in_place, pair.changed) << i;
        ++num_harmless;
      } catch (const PayloadError&) {
        EXPECT_EQ(in_place, pair.base) << i;
      }
    }
    EXPECT_LT(num_harmless, 30u);
  }
}

TEST(Delta, WhatTheCallersThreadsThrowIsUndone) {
  for (const float step : {1e-6f, 1e-2f}) {  // few changes, and all
    const Pair pair = bfloat16_step(600000, step);
    const Bytes payload = pair.payload();
    Bytes in_place = pair.base;
    int calls = 0;
    const Parallel fails_late = [&](std::int64_t count,
                                    const std::function<void(std::int64_t)>& task) {
      for (std::int64_t i = 0; i < count; ++i) {
        if (calls == 1 && i == 2) throw std::bad_alloc();  // the first call is that of the hashes
        task(i);
      }
      ++calls;
    };
    EXPECT_THROW(apply_delta(in_place, payload, in_place, fails_late), std::bad_alloc);
    EXPECT_EQ(in_place, pair.base);
  }
}

TEST(Delta, MisuseIsExplained) {
  const Pair pair = bfloat16_step(100, 1e-3f);
  DeltaTensor other = pair.view(pair.changed);
  other.type = "F16";
  EXPECT_THROW(delta(pair.view(pair.base), other), InvalidArgument);
  other = pair.view(pair.changed);
  other.shape = {99};
  EXPECT_THROW(delta(pair.view(pair.base), other), InvalidArgument);
  Bytes small(10);
  EXPECT_THROW(apply_delta(pair.base, pair.payload(), small), InvalidArgument);
}

// ---- sets --------------------------------------------------------------------------------------

struct Set {
  std::map<std::string, Bytes> memory;
  std::vector<DeltaTensor> tensors;

  void add(const std::string& name, const std::string& type, std::vector<std::uint64_t> shape,
           Bytes bytes) {
    memory[name] = std::move(bytes);
    tensors.push_back({name, type, std::move(shape), memory[name]});
  }
};

std::map<std::string, Bytes> applied(const Set& base, const Bytes& file) {
  const DeltaSet set = parse_delta_set(file);
  check_base(set, file, base.tensors, Verification::kFirst);
  std::map<std::string, Bytes> result;
  std::vector<DeltaTensor> others;
  for (const ContainerEntry& entry : set.index.entries) {
    const auto payload = std::span(file).subspan(entry.offset, entry.num_bytes);
    const auto found = std::ranges::find(base.tensors, entry.name, &DeltaTensor::name);
    const DeltaTensor* const from = found == base.tensors.end() ? nullptr : &*found;
    Bytes& out = result[entry.name];
    out.resize(entry_bytes(entry, payload, from));
    apply_entry(entry, payload, from, out);
    if (!is_delta(payload)) others.push_back({entry.name, entry.type, entry.shape, out});
  }
  check_result(set, file, others);
  return result;
}

TEST(DeltaSet, HasNewRemovedAndReshapedTensors) {
  const Pair one = bfloat16_step(6000, 1e-5f, 1), two = bfloat16_step(6000, 1e-5f, 2);
  Set base, changed;
  base.add("same", "BF16", {6000}, one.base);
  base.add("reshaped", "BF16", {60, 100}, two.base);
  base.add("removed", "I64", {2}, Bytes(16, 1));
  base.add("retyped", "I32", {2}, Bytes(8, 1));
  base.add("pairs", "C64", {2}, Bytes(16, 1));
  changed.add("new", "BOOL", {3}, Bytes(3, 1));
  changed.add("reshaped", "BF16", {6000}, two.changed);
  changed.add("same", "BF16", {6000}, one.changed);
  changed.add("retyped", "I64", {2}, Bytes(16, 2));
  changed.add("pairs", "C64", {2}, Bytes(16, 2));
  const Bytes file = delta(base.tensors, changed.tensors);
  EXPECT_EQ(applied(base, file), changed.memory);
  EXPECT_THROW(applied(changed, file), WrongBase);
  for (std::size_t size = 0; size < file.size(); ++size) {
    const Bytes cut(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW(applied(base, cut), PayloadError) << size;
  }
  for (std::size_t i = 0; i < file.size(); ++i) {
    Bytes flipped = file;
    flipped[i] ^= 4;
    EXPECT_THROW(applied(base, flipped), PayloadError) << i;
  }
}

TEST(DeltaSet, SwappedTensorsAreFound) {
  const Pair one = bfloat16_step(6000, 1e-5f, 1), two = bfloat16_step(6000, 1e-5f, 2);
  for (const bool is_new : {false, true}) {
    Set base, changed;
    if (!is_new) {
      base.add("a", "BF16", {6000}, one.base);
      base.add("b", "BF16", {6000}, two.base);
    }
    changed.add("a", "BF16", {6000}, one.changed);
    changed.add("b", "BF16", {6000}, two.changed);
    const Bytes file = delta(base.tensors, changed.tensors);
    DeltaSet set = parse_delta_set(file);
    const std::vector<ContainerEntry> entries = set.index.entries;
    std::swap(set.index.entries[0].num_bytes, set.index.entries[1].num_bytes);
    Bytes swapped = delta_set_header(set);
    for (const std::size_t i : {1, 0}) {
      const auto payload = std::span(file).subspan(entries[i].offset, entries[i].num_bytes);
      swapped.insert(swapped.end(), payload.begin(), payload.end());
    }
    EXPECT_THROW(applied(base, swapped), PayloadError) << is_new;
  }
}

TEST(DeltaValues, SymbolsComeBack) {
  using namespace delta_format;
  std::mt19937_64 random(3);
  const auto comes_back = [](std::int64_t difference) {
    const Symbol symbol = symbol_of(difference);
    EXPECT_EQ(extra_bits_of(symbol.symbol), symbol.extra_bits) << difference;
    EXPECT_EQ(difference_of(symbol.symbol, symbol.extra), difference);
  };
  for (std::int64_t d = -100000; d <= 100000; ++d) comes_back(d);
  for (int i = 0; i < 100000; ++i) comes_back(static_cast<std::int64_t>(random()) >> random() % 64);
  comes_back(INT64_MIN);
  comes_back(INT64_MAX);
  for (std::uint32_t gap = 0; gap < 65536; ++gap) {
    const Symbol symbol = gap_symbol(gap);
    EXPECT_LE(symbol.symbol, kMaxGapSymbol);
    EXPECT_EQ(gap_extra_bits(symbol.symbol), symbol.extra_bits);
    EXPECT_EQ(gap_of(symbol.symbol, symbol.extra), gap);
  }
}

TEST(DeltaValues, OrderIsThatOfFloats) {
  using namespace delta_format;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto word = static_cast<std::uint16_t>(bits);
    EXPECT_EQ(from_ordered(to_ordered(word, ValueKind::kFloat), ValueKind::kFloat), word);
  }
  EXPECT_EQ(difference<std::uint16_t>(0x8000, 0x0000, ValueKind::kFloat), 1);  // -0 to +0
  EXPECT_EQ(difference<std::uint16_t>(0x3f80, 0x3f7f, ValueKind::kFloat), -1);
  EXPECT_EQ(difference<std::uint16_t>(0xbf80, 0xbf7f, ValueKind::kFloat), 1);
}

}  // namespace
}  // namespace slimgrad
