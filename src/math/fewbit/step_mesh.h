// A target and its weight, integrated: panels on which both are smooth, fine where the target
// varies under the weight and coarse where it is flat.
#ifndef SLIMGRAD_MATH_FEWBIT_STEP_MESH_H_
#define SLIMGRAD_MATH_FEWBIT_STEP_MESH_H_

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

namespace slimgrad {

// What a stretch of the axis contributes: mass = int w, mean = int g w / mass, and
// spread = int (g - mean)^2 w, the error of the best constant there. Kept centred: the familiar
// int g^2 w - (int g w)^2 / int w from prefix sums cancels, badly so in a normal weight's tails.
struct Moments {
  double mass = 0;
  double mean = 0;
  double spread = 0;
};

// The moments of two adjacent stretches together (Chan's update).
inline Moments merge(const Moments& a, const Moments& b) {
  if (!(b.mass > 0)) return a;
  if (!(a.mass > 0)) return b;
  const double mass = a.mass + b.mass;
  const double share = b.mass / mass;
  const double difference = b.mean - a.mean;
  return {mass, a.mean + difference * share,
          a.spread + b.spread + difference * difference * a.mass * share};
}

// The function g and the weight w, checked at every evaluation: InvalidArgument unless g is finite
// and w is finite and non-negative.
struct WeightedTarget {
  std::function<double(double)> derivative;
  std::function<double(double)> weight;

  double derivative_at(double x) const;
  double weight_at(double x) const;

  // By a 10-point Gauss-Legendre rule. REQUIRES: no break inside. A stretch without mass has the
  // plain average as its mean.
  Moments integrate(double low, double high) const;
};

struct StepMesh {
  std::vector<double> edges;    // one more than panels
  std::vector<Moments> panels;  // panels[i] is edges[i] .. edges[i+1]
  std::vector<bool> jumps;      // by edge: the target's one-sided limits differ there
  double target_scale = 0;      // the largest |mean| of a panel
  double mass = 0;

  // A spread that is rounding: the target is constant to 13 digits.
  bool negligible(const Moments& stretch, double weight_mass) const {
    return stretch.spread <= 1e-26 * target_scale * target_scale * weight_mass;
  }
  // The value at x as the panel sees it: at the panel's own edge its one-sided limit.
  double value_in_panel(const WeightedTarget& target, std::size_t panel, double x) const;
};

// REQUIRES: low < high, finite; breaks finite. Throws InvalidArgument if the weight is zero.
StepMesh make_step_mesh(const WeightedTarget& target, std::span<const double> breaks, double low,
                        double high);

// Edges (indices, with first and last) that divide the mesh into about `num_cells` cells in which
// the target varies equally much, with every jump among them.
std::vector<std::size_t> choose_nodes(const StepMesh& mesh, std::size_t num_cells);

}  // namespace slimgrad

#endif  // SLIMGRAD_MATH_FEWBIT_STEP_MESH_H_
