// All of slimgrad that needs no torch. For tensors include <slimgrad/torch.h>, which includes this.
#ifndef SLIMGRAD_SLIMGRAD_H_
#define SLIMGRAD_SLIMGRAD_H_

#include <slimgrad/apply.h>
#include <slimgrad/delta.h>
#include <slimgrad/distribution.h>
#include <slimgrad/error.h>
#include <slimgrad/fewbit.h>
#include <slimgrad/float_format.h>
#include <slimgrad/format_choice.h>
#include <slimgrad/gate.h>
#include <slimgrad/half.h>
#include <slimgrad/hash128.h>
#include <slimgrad/measure.h>
#include <slimgrad/payload.h>
#include <slimgrad/payload_info.h>
#include <slimgrad/seed.h>
#include <slimgrad/steps.h>
#include <slimgrad/tensor_stats.h>
#include <slimgrad/threshold.h>
#include <slimgrad/treatment.h>
#include <slimgrad/version.h>

#endif  // SLIMGRAD_SLIMGRAD_H_
