// How the special functions of Boost are called here: in double (extended precision costs three to
// ten times as much and buys a digit that the arguments do not have), and with 0 or infinity where
// the result underflows or overflows, in place of an exception.
#ifndef SLIMGRAD_MATH_QUIET_POLICY_H_
#define SLIMGRAD_MATH_QUIET_POLICY_H_

#include <boost/math/policies/policy.hpp>

namespace slimgrad {

namespace policies = boost::math::policies;
using QuietPolicy = policies::policy<policies::promote_double<false>,
                                     policies::overflow_error<policies::ignore_error>,
                                     policies::underflow_error<policies::ignore_error>,
                                     policies::denorm_error<policies::ignore_error>,
                                     policies::evaluation_error<policies::ignore_error>>;
inline constexpr QuietPolicy kQuiet;

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_QUIET_POLICY_H_
