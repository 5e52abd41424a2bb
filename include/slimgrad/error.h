// What slimgrad throws. Misuse is an InvalidArgument whose text reads "[op] expected X, got Y", so
// that a user sees which call, which argument, what would have been right and what came. In Python
// it is a ValueError. Bytes that are no payload, or no longer one, are a PayloadError. The library
// never prints and never aborts.
#ifndef SLIMGRAD_ERROR_H_
#define SLIMGRAD_ERROR_H_

#include <stdexcept>
#include <string>

namespace slimgrad {

class InvalidArgument : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

enum class PayloadErrorCode {
  kTooShort,       // shorter than any payload
  kBadMagic,       // not a payload at all
  kBadVersion,     // written by a version that this one does not know
  kBadChecksum,    // damaged or cut off
  kBadHeader,      // a field that no encoder writes
  kTruncated,      // the blocks that the header announces are not all there
  kTrailingBytes,  // more bytes than the header announces
  kBadBlock,       // a block that does not decode
  kTooLarge,       // values that the caller, or the machine, has no room for
};

// Python: slimgrad.PayloadError, which is a ValueError.
class PayloadError : public std::runtime_error {
 public:
  PayloadError(PayloadErrorCode code, const std::string& text)
      : std::runtime_error(text), code_(code) {}

  PayloadErrorCode code() const { return code_; }

 private:
  PayloadErrorCode code_;
};

}  // namespace slimgrad

#endif  // SLIMGRAD_ERROR_H_
