#include "math/measure/gennorm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "golden.h"

namespace slimgrad {
namespace {

double relative(double actual, double expected) {
  return expected == 0 ? std::abs(actual) : std::abs(actual / expected - 1);
}

TEST(Gennorm, GoldenGrid) {
  int num_points = 0;
  const nlohmann::json reference_values = golden("gennorm.json");
  for (const auto& entry : reference_values["grid"]) {
    const Gennorm law{entry["beta"], entry["alpha"]};
    SCOPED_TRACE(testing::Message() << "shape " << law.shape << " scale " << law.scale);
    for (const auto& point : entry["points"]) {
      const double x = point["x"];
      SCOPED_TRACE(x);
      EXPECT_LT(relative(gennorm_density(law, x), point["pdf"]), 1e-13);
      EXPECT_LT(relative(gennorm_cdf(law, x), point["cdf"]), 1e-13);
      EXPECT_LT(relative(gennorm_cdf(law, -x), point["sf"]), 1e-13);
      ++num_points;
    }
    for (const auto& point : entry["quantiles"]) {
      const double tail = point["upper_tail"];
      SCOPED_TRACE(tail);
      EXPECT_LT(relative(-gennorm_quantile(law, tail), point["x"]), 1e-13);
    }
    EXPECT_LT(relative(gennorm_moment(law, 1), entry["mean_abs"]), 1e-13);
    EXPECT_LT(relative(gennorm_moment(law, 2), entry["variance"]), 1e-13);
    EXPECT_LT(relative(gennorm_moment_ratio(law.shape), entry["moment_ratio"]), 1e-13);
  }
  EXPECT_EQ(num_points, 90);
}

TEST(Gennorm, PartialMomentsMatchMpmath) {
  // Recipe: mpmath with 50 digits, z = (t/scale)^shape, c = (k+1)/shape: scale^k gamma(c) /
  // gamma(1/shape) times gammainc(c, 0, z, regularized=True) and gammainc(c, z, inf, ...); lower
  // and upper for k = 0, 1, 2.
  struct Row {
    double shape, scale, t;
    double moments[6];
  };
  constexpr Row kRows[] = {
      {0.05,
       1e-22,
       3.570467226624046e-120,
       {1.46755668463413611e-116, 1.0, 2.61993070635531236e-236, 16768354.8393177733, 0,
        1.14006333242846647e+19}},
      {0.05,
       1e-22,
       3.247321025468403e-12,
       {5.54140396335739965e-10, 0.999999999445859604, 8.24541807214722385e-22, 16768354.8393177733,
        1.73460114192362132e-33, 1.14006333242846647e+19}},
      {0.05,
       1e-22,
       161.59668870757196,
       {0.204450016486459752, 0.795549983513540248, 7.83888408825012337, 16768347.0004336851,
        700.264784427792792, 1.1400633324284664e+19}},
      {0.05,
       1e-22,
       4.340854607382114e+19,
       {1.0, 1.27095615993489617e-30, 16768354.8393177732, 6.84056161281748641e-11,
        1.14006333203882163e+19, 3896448431.29526559}},
      {0.3,
       0.001,
       2.8964681538168858e-21,
       {3.12774375978940779e-19, 1.0, 4.52970260744467559e-40, 0.140033381459538855,
        8.7467576722200762e-61, 0.130618898293675836}},
      {0.3,
       0.001,
       0.0028510321854250315,
       {0.11105407770115329, 0.88894592229884671, 0.000135190012904738135, 0.139898191446634117,
        2.41881715687640499e-7, 0.130618656411960148}},
      {0.3,
       0.001,
       0.5467892809746743,
       {0.9439433449699466, 0.0560566550300533999, 0.0763922490925319324, 0.0636411323670069228,
        0.0174791518582280685, 0.113139746435447767}},
      {0.3,
       0.001,
       439.2149585489117,
       {0.999999999999999999, 1.31273392935431606e-18, 0.140033381459538236,
        6.19497365479225208e-16, 0.130618898293381939, 2.93896899517298951e-13}},
      {0.8,
       0.02,
       2.8707827117949217e-09,
       {1.26688857768321429e-7, 0.999999873311142232, 1.81847994513762629e-16,
        0.0293322320234075294, 3.48030631447225219e-25, 0.00195188716819428422}},
      {0.8,
       0.02,
       0.016048163230511565,
       {0.456625219282150583, 0.543374780717849417, 0.00317438795023221656, 0.0261578440731754947,
        0.0000316972800580213462, 0.00192018988813626288}},
      {0.8,
       0.02,
       0.11520784022691904,
       {0.97150609173731465, 0.02849390826268535, 0.0249350896875659415, 0.00439714233584176973,
        0.00122618193034949101, 0.000725705237844793219}},
      {0.8,
       0.02,
       1.415153204051336,
       {0.999999999999797642, 2.02357736179311462e-13, 0.0293322320231092956,
        2.98415601736929439e-13, 0.00195188716775348429, 4.40799930240522014e-13}},
      {2.0,
       1.5,
       0.0021847129726829556,
       {0.00164345524087407557, 0.998356544759125924, 1.79523835766794928e-6, 0.846282580083276762,
        2.61471979803749928e-9, 1.1249999973852802}},
      {2.0,
       1.5,
       1.0923564863414776,
       {0.696935336616188439, 0.303064663383811561, 0.348321583868512241, 0.497962791453122189,
        0.240099368492685447, 0.884900631507314553}},
      {2.0,
       1.5,
       2.403184269951251,
       {0.97653292944987665, 0.0234670705501233497, 0.781305785488161014, 0.0649785898334734167,
        0.942444020659693631, 0.182555979340306369}},
      {2.0,
       1.5,
       6.554138918048866,
       {0.999999999356141406, 6.43858594314091718e-10, 0.846284370996328341, 4.3253060898233182e-9,
        1.12499997092700211, 2.90729978943881283e-8}},
      {3.0,
       2.5,
       0.030023423879400067,
       {0.0134486448971810868, 0.986551355102818913, 0.000201887130723980186, 1.26346833325949921,
        4.04089456777770215e-6, 2.3330095460266524}},
      {3.0,
       2.5,
       1.891357186778627,
       {0.765787832583590084, 0.234212167416409916, 0.679383082144142544, 0.584287138246080651,
        0.819932366716539735, 1.51308122020468044}},
      {3.0,
       2.5,
       3.199302764128079,
       {0.977428166071948669, 0.0225718339280513306, 1.18350454359751256, 0.0801656767927106343,
        2.04611332995710642, 0.286900256964113758}},
      {3.0,
       2.5,
       6.245123832417033,
       {0.999999990235434956, 9.76456504374407608e-9, 1.2636701582005919, 6.2189631295989529e-8,
        2.33301319070131008, 3.96219910098039434e-7}},
      {20.0,
       0.5,
       0.24564069483237055,
       {0.504652512937197381, 0.495347487062802619, 0.0619815951634618857, 0.182329293735649489,
        0.0101501344660538491, 0.0697194805691456077}},
      {20.0,
       0.5,
       0.4572959105200863,
       {0.932291959918907625, 0.0677080400810923748, 0.21167470308860029, 0.0326361858105110853,
        0.064117516215841622, 0.0157520988193578347}},
      {20.0,
       0.5,
       0.49481127339375663,
       {0.984147831919929027, 0.0158521680800709727, 0.236263639859050525, 0.0080472490400608498,
        0.0757828556299176421, 0.00408675940528181464}},
      {20.0,
       0.5,
       0.5470316352712468,
       {0.99998048928682513, 0.0000195107131748695436, 0.244300146095522921,
        0.0000107428035884541879, 0.079863699727392443, 5.91530780701373601e-6}},
  };
  for (const Row& row : kRows) {
    const Gennorm law{row.shape, row.scale};
    for (int k = 0; k <= 2; ++k) {
      SCOPED_TRACE(testing::Message() << row.shape << " t " << row.t << " power " << k);
      EXPECT_LT(relative(gennorm_lower_moment(law, k, row.t), row.moments[2 * k]), 1e-13);
      EXPECT_LT(relative(gennorm_upper_moment(law, k, row.t), row.moments[2 * k + 1]), 1e-13);
    }
  }
}

TEST(Gennorm, PartialMomentsAtTheEnds) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double shape : {0.05, 1.0, 20.0}) {
    const Gennorm law{shape, 0.5};
    for (int k = 0; k <= 2; ++k) {
      EXPECT_EQ(gennorm_lower_moment(law, k, 0), 0);
      EXPECT_EQ(gennorm_upper_moment(law, k, infinity), 0);
      EXPECT_EQ(gennorm_lower_moment(law, k, infinity), gennorm_moment(law, k));
      EXPECT_EQ(gennorm_upper_moment(law, k, 0), gennorm_moment(law, k));
    }
    // Near zero the density is flat: E[|X|^k; |X| <= t] = 2 f(0) t^(k+1) / (k+1).
    const double t = 1e-60 * std::pow(1e-3, 1 / shape);
    for (int k = 0; k <= 2; ++k)
      EXPECT_LT(relative(gennorm_lower_moment(law, k, t),
                         2 * gennorm_density(law, 0) * std::pow(t, k + 1) / (k + 1)),
                1e-4);
  }
}

TEST(Gennorm, LargeShapeIsUniformAndTinyOnesStayFinite) {
  EXPECT_NEAR(gennorm_cdf({1e6, 2}, 1), 0.75, 1e-6);
  EXPECT_NEAR(gennorm_quantile({1e6, 2}, 0.75), 1, 1e-5);
  const Gennorm law{kMinGennormShape, 1e-120};
  EXPECT_TRUE(std::isfinite(gennorm_moment(law, 2)));
  EXPECT_GT(gennorm_moment(law, 2), 0);
  // E X^2 of so small a shape is no double any more: infinity, not an exception.
  EXPECT_EQ(gennorm_moment({1e-3, 1}, 2), std::numeric_limits<double>::infinity());
}

TEST(Gennorm, MomentRatioIsInverted) {
  for (double shape = kMinGennormShape; shape < kMaxGennormShape; shape *= 1.3) {
    const double ratio = gennorm_moment_ratio(shape);
    // Towards 3/4 the ratio is flat: an ulp of it is much of a shape.
    EXPECT_LT(relative(gennorm_shape_of_moment_ratio(ratio), shape), 1e-12 + 1e-15 * shape * shape);
  }
  const nlohmann::json reference_values = golden("gennorm.json");
  for (const auto& fit : reference_values["fits"]) {
    const double mean_abs = fit["mean_abs"];
    const double mean_square = fit["mean_sq"];
    EXPECT_LT(relative(gennorm_shape_of_moment_ratio(mean_abs * mean_abs / mean_square),
                       fit["moment"]["beta"]),
              1e-12);
  }
  EXPECT_EQ(gennorm_shape_of_moment_ratio(0.75), kMaxGennormShape);
  EXPECT_EQ(gennorm_shape_of_moment_ratio(1.0), kMaxGennormShape);
  EXPECT_EQ(gennorm_shape_of_moment_ratio(1e-60), kMinGennormShape);
}

}  // namespace
}  // namespace slimgrad
