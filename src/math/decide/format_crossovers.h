// best_format() of a lognormal by table: the deviations at which a width changes its mind. A
// look-up costs nothing, which matters in every layer of every step; finding the rows takes
// milliseconds. Each lies within a thousandth of where the mind changes; a test finds them anew.
#ifndef SLIMGRAD_MATH_DECIDE_FORMAT_CROSSOVERS_H_
#define SLIMGRAD_MATH_DECIDE_FORMAT_CROSSOVERS_H_

namespace slimgrad {

// From this deviation of log2|x| on, the format of `bits` has `exponent_bits`.
struct FormatCrossover {
  int bits;
  double from;
  int exponent_bits;
};

inline constexpr FormatCrossover kFormatCrossovers[] = {
    {2, 0x0p+0, 1},
    {3, 0x0p+0, 2},
    {4, 0x0p+0, 2},
    {4, 0x1.7872324034eadp-1, 3},
    {5, 0x0p+0, 2},
    {5, 0x1.2ebc6ba71b61bp-1, 3},
    {5, 0x1.0b64d14c7e76dp+1, 4},
    {6, 0x0p+0, 2},
    {6, 0x1.00155fc1a8881p-1, 3},
    {6, 0x1.bc2b839ee102ep+0, 4},
    {6, 0x1.24f7e290703dcp+2, 5},
    {7, 0x0p+0, 2},
    {7, 0x1.c1c97a7f4d705p-2, 3},
    {7, 0x1.7cffaef2623a7p+0, 4},
    {7, 0x1.ef35ce52e06fp+1, 5},
    {7, 0x1.2c26e6f786ae2p+3, 6},
    {8, 0x0p+0, 2},
    {8, 0x1.946948b9b303ep-2, 3},
    {8, 0x1.500e5787180c3p+0, 4},
    {8, 0x1.af1f05b3ae0a8p+1, 5},
    {8, 0x1.fe036354ae96p+2, 6},
    {8, 0x1.2def1dd1df39ap+4, 7},
};
inline constexpr int kNumFormatCrossovers = sizeof(kFormatCrossovers) / sizeof(FormatCrossover);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_DECIDE_FORMAT_CROSSOVERS_H_
