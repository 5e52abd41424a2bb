#include <slimgrad/distribution.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include <slimgrad/error.h>

namespace slimgrad {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Recipe: mpmath with 50 digits from the textbook formulas (npdf, ncdf, exp, atan2, gammainc of the
// definitions in distribution.h): density, cdf, 1 - cdf, P(|X| <= |x|).
struct Point {
  Family family;
  std::vector<double> params;
  double x, density, cdf, upper, magnitude;
};
const Point kPoints[] = {
    {Family::kNormal, {0.03}, -0.9, 4.91215378292821923e-195, 4.90671392714791438e-198, 1.0, 1.0},
    {Family::kNormal,
     {0.03},
     -0.25,
     1.10692781497574418e-14,
     3.92987343485105255e-17,
     0.999999999999999961,
     0.999999999999999921},
    {Family::kNormal,
     {0.03},
     -0.031,
     7.79693318700543298,
     0.150723966569024644,
     0.849276033430975356,
     0.698552066861950712},
    {Family::kNormal,
     {0.03},
     1e-06,
     13.2980760059932698,
     0.500013298076010918,
     0.499986701923989082,
     0.000026596152021836965},
    {Family::kNormal,
     {0.03},
     0.05,
     3.31590462642495536,
     0.952209647727185307,
     0.0477903522728146925,
     0.904419295454370615},
    {Family::kNormal,
     {0.03},
     0.2,
     2.97030006245071316e-9,
     0.999999999986916075,
     1.30839246860529701e-11,
     0.999999999973832151},
    {Family::kNormal, {7.5}, -200.5, 3.44341079646170303e-157, 9.64698078453906117e-158, 1.0, 1.0},
    {Family::kNormal,
     {7.5},
     3.25,
     0.0484254177668557299,
     0.667613687373324966,
     0.332386312626675034,
     0.335227374746649933},
    {Family::kLaplace, {0.03}, -15.5, 6.86066846425620199e-224, 2.05820053927686052e-225, 1.0, 1.0},
    {Family::kLaplace,
     {0.03},
     -0.4,
     0.000026993279871876813,
     8.0979839615630436e-7,
     0.999999190201603844,
     0.999998380403207687},
    {Family::kLaplace,
     {0.03},
     -0.01,
     11.9421885095631544,
     0.358265655286894618,
     0.641734344713105382,
     0.283468689426210763},
    {Family::kLaplace,
     {0.03},
     1e-07,
     16.6666111112037042,
     0.500001666663888892,
     0.499998333336111108,
     3.33332777778395058e-6},
    {Family::kLaplace,
     {0.03},
     0.02,
     8.55695198387653377,
     0.743291440483703996,
     0.256708559516296004,
     0.486582880967407993},
    {Family::kLaplace,
     {0.03},
     0.5,
     9.62958086569856072e-7,
     0.999999971111257403,
     2.88887425970956811e-8,
     0.999999942222514806},
    {Family::kCauchy,
     {0.003},
     -1000000000.0,
     9.54929658551372034e-22,
     9.54929658551372034e-13,
     0.99999999999904507,
     0.999999999998090141},
    {Family::kCauchy,
     {0.003},
     -2.5,
     0.000152788525352743018,
     0.000381971680074212783,
     0.999618028319925787,
     0.999236056639851574},
    {Family::kCauchy,
     {0.003},
     -0.002,
     73.4561275808747688,
     0.312832958189001184,
     0.687167041810998816,
     0.374334083621997632},
    {Family::kCauchy,
     {0.003},
     1e-08,
     106.103295393417963,
     0.500001061032953942,
     0.499998938967046058,
     2.12206590788407831e-6},
    {Family::kCauchy,
     {0.003},
     0.004,
     38.1971863420548798,
     0.795167235300866548,
     0.204832764699133452,
     0.590334470601733097},
    {Family::kCauchy,
     {0.003},
     7.0,
     0.0000194883567991053233,
     0.999863581485701958,
     0.000136418514298042477,
     0.999727162971403915},
    {Family::kUniform, {0.125}, -0.2, 0.0, 0.0, 1.0, 1.0},
    {Family::kUniform,
     {0.125},
     -0.1249,
     4.0,
     0.000400000000000011458,
     0.999599999999999989,
     0.999199999999999977},
    {Family::kUniform,
     {0.125},
     -0.01,
     4.0,
     0.459999999999999999,
     0.540000000000000001,
     0.0800000000000000017},
    {Family::kUniform, {0.125}, 1e-09, 4.0, 0.500000004, 0.499999996, 8.0000000000000005e-9},
    {Family::kUniform,
     {0.125},
     0.06,
     4.0,
     0.739999999999999991,
     0.260000000000000009,
     0.479999999999999982},
    {Family::kUniform, {0.125}, 0.125, 4.0, 1.0, 0.0, 1.0},
    {Family::kUniform, {0.125}, 0.13, 0.0, 1.0, 0.0, 1.0},
    {Family::kGennorm,
     {0.05, 1e-22},
     -1000000000.0,
     8.00747667914664914e-13,
     0.000918941756017196469,
     0.999081058243982804,
     0.998162116487965607},
    {Family::kGennorm,
     {0.05, 1e-22},
     -1000.0,
     0.0000388934113456288589,
     0.335025716998579434,
     0.664974283001420566,
     0.329948566002841132},
    {Family::kGennorm,
     {0.05, 1e-22},
     -0.0001,
     0.729661943870777419,
     0.499884370939647964,
     0.500115629060352036,
     0.000231258120704072766},
    {Family::kGennorm,
     {0.05, 1e-22},
     1e-12,
     86.9932686991555791,
     0.500000000102274002,
     0.499999999897725998,
     2.04548003729900838e-10},
    {Family::kGennorm,
     {0.05, 1e-22},
     1e-06,
     3.73794112965596748,
     0.500005302432536965,
     0.499994697567463035,
     0.0000106048650739294411},
    {Family::kGennorm,
     {0.05, 1e-22},
     0.3,
     0.014615834823601599,
     0.509509403997132135,
     0.490490596002867865,
     0.0190188079942642699},
    {Family::kGennorm,
     {0.3, 0.001},
     -500.0,
     2.98462004493034084e-21,
     1.0159625009253252e-19,
     1.0,
     1.0},
    {Family::kGennorm,
     {0.3, 0.001},
     -3.0,
     0.000862731750110831085,
     0.000966689137630528013,
     0.999033310862369472,
     0.998066621724738944},
    {Family::kGennorm,
     {0.3, 0.001},
     -0.01,
     7.34180472708579296,
     0.374733803456362604,
     0.625266196543637396,
     0.250532393087274793},
    {Family::kGennorm,
     {0.3, 0.001},
     1e-09,
     53.1436205909299167,
     0.500000053338569557,
     0.499999946661430443,
     1.06677139114218619e-7},
    {Family::kGennorm,
     {0.3, 0.001},
     0.02,
     4.62923186647742599,
     0.683001342628704929,
     0.316998657371295071,
     0.366002685257409858},
    {Family::kGennorm,
     {0.3, 0.001},
     1.0,
     0.0191694896569070649,
     0.98918054823608241,
     0.0108194517639175904,
     0.978361096472164819},
    {Family::kGennorm,
     {3.0, 2.5},
     -20.0,
     9.80423622342780625e-224,
     1.27493641037956604e-225,
     1.0,
     1.0},
    {Family::kGennorm,
     {3.0, 2.5},
     -5.0,
     0.0000751333314048823435,
     0.0000145564792002978598,
     0.999985443520799702,
     0.999970887041599404},
    {Family::kGennorm,
     {3.0, 2.5},
     -1.0,
     0.210084327216501567,
     0.279549644123173965,
     0.720450355876826035,
     0.44090071175365207},
    {Family::kGennorm,
     {3.0, 2.5},
     1e-05,
     0.223969304344437123,
     0.500002239693043444,
     0.499997760306956556,
     4.47938608688874303e-6},
    {Family::kGennorm,
     {3.0, 2.5},
     0.7,
     0.219106301776237023,
     0.655923481468374612,
     0.344076518531625388,
     0.311846962936749224},
    {Family::kGennorm,
     {3.0, 2.5},
     3.3,
     0.022455622051382487,
     0.991225350567495253,
     0.0087746494325047473,
     0.982450701134990505},
    {Family::kGennorm,
     {20.0, 0.5},
     -0.65,
     2.97956716165163775e-83,
     5.0700844146012536e-87,
     1.0,
     1.0},
    {Family::kGennorm,
     {20.0, 0.5},
     -0.55,
     0.00123011591177384422,
     4.46541878874943448e-6,
     0.999995534581211251,
     0.999991069162422501},
    {Family::kGennorm,
     {20.0, 0.5},
     -0.4,
     1.01544186979070229,
     0.0893381705878354824,
     0.910661829412164518,
     0.821323658824329035},
    {Family::kGennorm, {20.0, 0.5}, 1e-30, 1.02721686527167641, 0.5, 0.5, 2.05443373054335299e-30},
    {Family::kGennorm,
     {20.0, 0.5},
     0.2,
     1.0272168539773076,
     0.705443372946769876,
     0.294556627053230124,
     0.410886745893539751},
    {Family::kGennorm,
     {20.0, 0.5},
     0.52,
     0.114833724532739986,
     0.998980733504678963,
     0.00101926649532103692,
     0.997961467009357926},
    {Family::kLognormal,
     {-7.5, 2.25},
     1e-20,
     3.15707859818595878e-45,
     4.13180622881150442e-66,
     1.0,
     4.13180622881150442e-66},
    {Family::kLognormal,
     {-7.5, 2.25},
     1e-06,
     3450.64351984530273,
     0.0025010881906578726,
     0.997498911809342127,
     0.0025010881906578726},
    {Family::kLognormal,
     {-7.5, 2.25},
     0.00055,
     322.376604582149357,
     0.499008446873676118,
     0.500991553126323882,
     0.499008446873676118},
    {Family::kLognormal,
     {-7.5, 2.25},
     0.02,
     2.48603649191789109,
     0.944605458240525796,
     0.0553945417594742038,
     0.944605458240525796},
    {Family::kLognormal,
     {-7.5, 2.25},
     30.0,
     4.72428117650845242e-8,
     0.999999366867035137,
     6.33132964863403078e-7,
     0.999999366867035137},
    {Family::kLognormal,
     {3.0, 0.5},
     0.01,
     4.61273646587678249e-49,
     1.50984511328221277e-52,
     1.0,
     1.50984511328221277e-52},
    {Family::kLognormal,
     {3.0, 0.5},
     1.0,
     1.2151765699646571e-8,
     9.86587645037698141e-10,
     0.999999999013412355,
     9.86587645037698141e-10},
    {Family::kLognormal,
     {3.0, 0.5},
     20.0,
     0.0398927748404426866,
     0.496594888305025841,
     0.503405111694974159,
     0.496594888305025841},
    {Family::kLognormal,
     {3.0, 0.5},
     400.0,
     3.36510730105243056e-11,
     0.999999998904199051,
     1.09580094920020131e-9,
     0.999999998904199051},
    {Family::kLoglaplace,
     {-7.5, 1.5},
     1e-40,
     1065821528092707.58,
     1.59873229213906126e-25,
     1.0,
     1.59873229213906126e-25},
    {Family::kLoglaplace,
     {-7.5, 1.5},
     1e-06,
     4947.10530341922019,
     0.00742065795512882995,
     0.99257934204487117,
     0.00742065795512882995},
    {Family::kLoglaplace,
     {-7.5, 1.5},
     0.00055,
     603.805305798113686,
     0.498139377283443821,
     0.501860622716556179,
     0.498139377283443821},
    {Family::kLoglaplace,
     {-7.5, 1.5},
     0.02,
     1.52413350283336467,
     0.954275994914999059,
     0.0457240050850009412,
     0.954275994914999059},
    {Family::kLoglaplace,
     {-7.5, 1.5},
     3000000.0,
     3.59918561636485433e-14,
     0.999999838036647264,
     1.61963352736418445e-7,
     0.999999838036647264},
    {Family::kLoglaplace,
     {3.0, 0.25},
     0.01,
     1.22884247066564203e-11,
     3.07210617666410514e-14,
     0.999999999999969279,
     3.07210617666410514e-14},
    {Family::kLoglaplace,
     {3.0, 0.25},
     20.0,
     0.0983073976532513561,
     0.491536988266256781,
     0.508463011733743219,
     0.491536988266256781},
    {Family::kLoglaplace,
     {3.0, 0.25},
     90.0,
     0.0000551253336784717509,
     0.998759679992234386,
     0.00124032000776561439,
     0.998759679992234386},
};

std::string describe(const Point& point) {
  return std::string(family_name(point.family)) + " at " + std::to_string(point.x);
}

double relative(double actual, double expected) {
  return expected == 0 ? std::abs(actual) : std::abs(actual / expected - 1);
}

TEST(Distribution, DensityAndCdfMatchMpmathInTheTailsToo) {
  for (const Point& point : kPoints) {
    SCOPED_TRACE(describe(point));
    const Distribution law(point.family, point.params);
    EXPECT_LT(relative(law.density(point.x), point.density), 1e-13);
    EXPECT_LT(relative(law.cdf(point.x), point.cdf), 1e-13);
    EXPECT_LT(relative(law.cdf_of_magnitude(std::abs(point.x)), point.magnitude), 1e-13);
    if (is_symmetric(point.family)) {
      EXPECT_LT(relative(law.density(-point.x), point.density), 1e-13);
      EXPECT_LT(relative(law.cdf(-point.x), point.upper), 1e-13);
      EXPECT_EQ(law.cdf_of_magnitude(-1), 0);
    }
  }
}

TEST(Distribution, QuantileInvertsMpmathsCdf) {
  for (const Point& point : kPoints) {
    SCOPED_TRACE(describe(point));
    const Distribution law(point.family, point.params);
    // From the smaller tail, which has all the digits; of 1 - p few are left.
    const bool mirrored = point.upper < point.cdf && is_symmetric(point.family);
    const double p = mirrored ? point.upper : point.cdf;
    if (p == 0 || p > 0.999) continue;  // outside the support, or in a tail without a mirror
    const double x = mirrored ? -point.x : point.x;
    // An ulp of p moves x by p / (x f(x)) ulp: near the centre that is much.
    const double condition = p / (std::abs(x) * point.density);
    EXPECT_LT(relative(law.quantile(p), x), 1e-13 + 4e-16 * condition);
  }
}

TEST(Distribution, QuantileAtTheEndsAndTheCentre) {
  for (const Family family : kAllFamilies) {
    SCOPED_TRACE(family_name(family));
    const std::vector<double> params(parameter_names(family).size(), 0.75);
    const Distribution law(family, params);
    if (family == Family::kUniform) {
      EXPECT_EQ(law.quantile(0), -0.75);
      EXPECT_EQ(law.quantile(1), 0.75);
    } else {
      EXPECT_EQ(law.quantile(0), is_symmetric(family) ? -kInfinity : 0);
      EXPECT_EQ(law.quantile(1), kInfinity);
    }
    EXPECT_NEAR(law.quantile(0.5), is_symmetric(family) ? 0 : std::exp(0.75), 1e-15);
    EXPECT_EQ(law.cdf(-kInfinity), 0);
    EXPECT_EQ(law.cdf(kInfinity), 1);
    EXPECT_EQ(law.cdf_of_magnitude(kInfinity), 1);
    EXPECT_EQ(law.density(kInfinity), 0);
    EXPECT_EQ(law.cdf_of_magnitude(0), 0);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(law.cdf(nan)));
    EXPECT_TRUE(std::isnan(law.density(nan)));
    for (const double p : {-0.1, 1.1, nan}) EXPECT_THROW(law.quantile(p), InvalidArgument);
  }
}

TEST(Distribution, QuantileOfCdfIsTheIdentityAlongTheWholeLine) {
  for (const Family family : kAllFamilies) {
    SCOPED_TRACE(family_name(family));
    for (double p = 1e-12; p < 1; p = p < 0.5 ? p * 1.7 : 1 - (1 - p) / 1.7) {
      if (1 - p < 1e-6) break;
      const std::vector<double> params(parameter_names(family).size(), 0.75);
      const Distribution law(family, params);
      // Close to the end of the uniform's support the ulp of x counts.
      const double ulp = family == Family::kUniform ? 1.2e-16 : 0;
      EXPECT_NEAR(law.cdf(law.quantile(p)), p, 1e-13 * p + ulp) << p;
    }
  }
}

TEST(Distribution, NamesGoBothWays) {
  for (const Family family : kAllFamilies) EXPECT_EQ(parse_family(family_name(family)), family);
  EXPECT_THROW(parse_family("gaussian"), InvalidArgument);
  EXPECT_THAT(parameter_names(Family::kGennorm), testing::ElementsAre("shape", "scale"));
  EXPECT_THAT(parameter_names(Family::kLognormal), testing::ElementsAre("log_mean", "log_std"));
}

TEST(Distribution, RefusesWrongParameters) {
  EXPECT_THROW(Distribution(Family::kNormal, {}), InvalidArgument);
  EXPECT_THROW(Distribution(Family::kNormal, {1, 2}), InvalidArgument);
  EXPECT_THROW(Distribution(Family::kGennorm, {1}), InvalidArgument);
  for (const double bad : {0.0, -1.0, kInfinity, std::nan("")}) {
    EXPECT_THROW(Distribution(Family::kLaplace, {bad}), InvalidArgument) << bad;
    EXPECT_THROW(Distribution(Family::kGennorm, {bad, 1}), InvalidArgument) << bad;
    EXPECT_THROW(Distribution(Family::kLognormal, {0, bad}), InvalidArgument) << bad;
  }
  EXPECT_NO_THROW(Distribution(Family::kLognormal, {-3, 1}));
  try {
    Distribution(Family::kGennorm, {1, -2});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "[distribution] expected gennorm's scale to be positive and finite, got -2");
  }
}

}  // namespace
}  // namespace slimgrad
