// Moves the borders of a good step table off the grid to the nearest local optimum.
#ifndef SLIMGRAD_MATH_FEWBIT_POLISH_H_
#define SLIMGRAD_MATH_FEWBIT_POLISH_H_

#include <vector>

#include "math/fewbit/step_mesh.h"

namespace slimgrad {

struct PolishedSteps {
  std::vector<double> borders;  // inner ones
  std::vector<double> levels;
  double error = 0;
};

// Damped Newton on the conditions for an optimum. With levels that are the means of their cells,
// the error E changes with border b_j between levels l_j and l_{j+1} as
//   dE/db_j = 2 w(b_j) (l_{j+1} - l_j) r_j,   r_j = g(b_j) - (l_j + l_{j+1}) / 2,
// so r_j = 0 for every border, except one on a jump of g whose one-sided limits lie on either side
// of the mean level: that one stays. A border moves only its two cells' means,
//   dl_j / db_j = w(b_j) (g(b_j) - l_j) / mass_j,
//   dl_{j+1} / db_j = -w(b_j) (g(b_j) - l_{j+1}) / mass_{j+1},
// hence the Jacobian of r is tridiagonal. No step is taken that makes the error larger, so the
// result is never worse than the start. Costs one sweep over the mesh and two quadratures a border
// for every iteration; about five are needed.
//
// REQUIRES: borders strictly ascending inside the mesh, with mass in every cell.
PolishedSteps polish_steps(const WeightedTarget& target, const StepMesh& mesh,
                           std::vector<double> borders);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_FEWBIT_POLISH_H_
