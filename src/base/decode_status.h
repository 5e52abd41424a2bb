// How the decoding of untrusted bytes ended. Decoders return one of these and never throw: a
// damaged byte is an ordinary event for them. The layer that talks to users turns it into a typed
// error.
#ifndef SLIMGRAD_BASE_DECODE_STATUS_H_
#define SLIMGRAD_BASE_DECODE_STATUS_H_

namespace slimgrad {

enum class DecodeStatus {
  kOk,
  kTruncated,      // the bytes end before the symbols do
  kTrailingBytes,  // the symbols end before the bytes do
  kBadTable,       // a frequency or code-length table that no encoder writes
  kBadMethod,      // a method or table kind that this version does not know
  kBadFinalState,  // all was read, but the coder did not come back to where encoding began
  kNoSharedTable,  // the bytes refer to a table that the caller did not give
};

}  // namespace slimgrad

#endif  // SLIMGRAD_BASE_DECODE_STATUS_H_
